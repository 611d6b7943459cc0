"""Runs many programs at a time: on a pool of threads, or as coroutines on one."""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import os
import queue
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from tqdm import tqdm

from branchline.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence

T = TypeVar("T")

MIN_AUTO_THREADS = 96  # programs wait far more than they compute
AUTO_THREADS_PER_CPU = 16
AHEAD = 2  # jobs that have begun for each thread, and whose results nobody has taken yet


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
    jobs: Sequence[Callable[[], T]],
    threads: int,
    *,
    progress_bar: bool,
    abandon: Callable[[int], None],
) -> Iterator[tuple[int, T]]:
    """The result of each job with its index, as they complete.

    Jobs begin no further ahead of whoever takes the results than AHEAD for each thread. Whoever
    leaves early leaves undone what has not begun; of the other jobs that have not ended `abandon`
    gets the index.
    """
    pool = ThreadPoolExecutor(threads, thread_name_prefix="branchline-batch")
    ended: queue.SimpleQueue[Future[T]] = queue.SimpleQueue()
    begun: dict[Future[T], int] = {}
    waiting = iter(enumerate(jobs))

    def begin(count: int) -> None:
        for index, job in itertools.islice(waiting, count):
            future = pool.submit(job)
            begun[future] = index
            future.add_done_callback(ended.put)

    try:
        begin(AHEAD * threads)
        with tqdm(total=len(jobs), disable=not progress_bar) as bar:
            while begun:
                future = ended.get()
                bar.update()
                yield begun.pop(future), future.result()
                begin(1)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for future, index in begun.items():
            if not future.done():
                abandon(index)


def in_order(results: Iterator[tuple[int, T]]) -> Iterator[T]:
    """Indexed results in the order of their indices, each as soon as those before it are there."""
    ready: dict[int, T] = {}
    following = 0
    for index, result in results:
        ready[index] = result
        while following in ready:
            yield ready.pop(following)
            following += 1


def completed_async(
    jobs: Sequence[Callable[[], Coroutine[Any, Any, T]]], at_once: int, *, progress_bar: bool
) -> Iterator[tuple[int, T]]:
    """`completed` for coroutines, on an event loop in one thread.

    Whoever leaves early cancels those that run.
    """
    batch = _AsyncBatch(jobs, at_once)
    context = contextvars.copy_context()
    threading.Thread(
        target=context.run, args=(batch.serve,), name="branchline-batch", daemon=True
    ).start()
    try:
        with tqdm(total=len(jobs), disable=not progress_bar) as bar:
            for _ in jobs:
                result = batch.results.get()
                if isinstance(result, BaseException):
                    raise result
                bar.update()
                yield result
                batch.taken()
    finally:
        batch.cancel()


class _AsyncBatch(Generic[T]):
    """Coroutines on an event loop of their own; the results leave it by a queue."""

    def __init__(self, jobs: Sequence[Callable[[], Coroutine[Any, Any, T]]], at_once: int) -> None:
        self.results: queue.SimpleQueue[tuple[int, T] | BaseException] = queue.SimpleQueue()
        self._jobs = jobs
        self._at_once = at_once
        self._ahead = asyncio.Semaphore(AHEAD * at_once)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._ready = threading.Event()

    def serve(self) -> None:
        """Run them all; the thread's whole work."""
        try:
            asyncio.run(self._work_all())
        except BaseException as error:  # noqa: BLE001 - raised where the results are read
            self.results.put(error)

    def taken(self) -> None:
        """Somebody has taken a result: another job may begin."""
        self._tell(self._ahead.release)

    def cancel(self) -> None:
        """End what runs; does nothing where all has ended."""
        self._ready.wait()
        assert self._task is not None
        self._tell(self._task.cancel)

    def _tell(self, call: Callable[[], object]) -> None:
        assert self._loop is not None, "there is a result, so it runs"
        with suppress(RuntimeError):  # the loop has closed: all has ended
            self._loop.call_soon_threadsafe(call)

    async def _work_all(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        self._ready.set()
        indices = iter(range(len(self._jobs)))
        async with asyncio.TaskGroup() as workers:
            for _ in range(self._at_once):
                workers.create_task(self._work(indices))

    async def _work(self, indices: Iterator[int]) -> None:
        for index in indices:
            await self._ahead.acquire()
            self.results.put((index, await self._jobs[index]()))
