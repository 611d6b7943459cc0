"""The device's queue of work: jobs run in order, one at a time, on one thread."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol, TypeVar

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class Stream(Protocol):
    """Queues jobs and returns at once; a later job sees what earlier ones wrote."""

    def submit(self, job: Callable[[], T]) -> Future[T]:
        """Queue a job; its future has the result or the exception."""

    def close(self) -> None:
        """Wait for what is queued, then end."""


class WorkerStream:
    """The CPU's stream: a worker thread, the process's only user of OpenMP."""

    def __init__(self, threads: int | None = None) -> None:
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="branchline-device")
        if threads is not None:
            self._worker.submit(torch.set_num_threads, threads).result()

    def submit(self, job: Callable[[], T]) -> Future[T]:
        """Queue a job for the worker."""
        return self._worker.submit(job)

    def close(self) -> None:
        """Wait for what is queued, then end the worker."""
        self._worker.shutdown()
