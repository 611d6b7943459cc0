"""Runs many programs on a pool of threads."""

from __future__ import annotations

import concurrent.futures
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Literal, TypeVar

from tqdm import tqdm

from branchline.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

T = TypeVar("T")

MIN_AUTO_THREADS = 96  # programs wait far more than they compute
AUTO_THREADS_PER_CPU = 16


def pool_size(num_threads: int | Literal["auto"], jobs: int) -> int:
    """The threads for a number of jobs.

    Raises:
        InvalidRequest: not a number from 1 and not `auto`.
    """
    if num_threads == "auto":
        num_threads = max(MIN_AUTO_THREADS, AUTO_THREADS_PER_CPU * (os.cpu_count() or 1))
    if not isinstance(num_threads, int) or num_threads < 1:
        raise InvalidRequest(f'num_threads={num_threads!r}: must be "auto" or at least 1')
    return max(1, min(num_threads, jobs))


def completed(
    jobs: Sequence[Callable[[], T]], threads: int, *, progress_bar: bool
) -> Iterator[tuple[int, T]]:
    """The result of each job with its index, as they complete.

    Closing it early leaves undone what has not begun.
    """
    pool = ThreadPoolExecutor(threads, thread_name_prefix="branchline-batch")
    indices = {pool.submit(job): index for index, job in enumerate(jobs)}
    try:
        with tqdm(total=len(jobs), disable=not progress_bar) as bar:
            for future in concurrent.futures.as_completed(indices):
                bar.update()
                yield indices.pop(future), future.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def in_order(results: Iterator[tuple[int, T]]) -> Iterator[T]:
    """Indexed results in the order of their indices, each as soon as those before it are there."""
    ready: dict[int, T] = {}
    following = 0
    for index, result in results:
        ready[index] = result
        while following in ready:
            yield ready.pop(following)
            following += 1
