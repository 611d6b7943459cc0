"""The device's queue of work: jobs run in order, one at a time, on one thread."""

from __future__ import annotations

import queue
import threading
from concurrent.futures import Future
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
    """The CPU's stream: a worker thread, the process's only user of OpenMP, from the loading on.

    A second user, even one that is idle, makes GNU's OpenMP count more threads than processors;
    then it sleeps at every barrier instead of spinning, and a decode step takes a fifth longer.

    Not an executor: those refuse work once the interpreter begins to exit, before an `Engine` that
    nobody closed has been told.
    """

    def __init__(self, threads: int | None = None) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._worker = threading.Thread(target=self._work, name="branchline-device", daemon=True)
        self._worker.start()
        if threads is not None:
            self.submit(lambda: torch.set_num_threads(threads)).result()

    def submit(self, job: Callable[[], T]) -> Future[T]:
        """Queue a job for the worker."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(job())
            except BaseException as error:  # noqa: BLE001 - whoever takes the result raises it
                future.set_exception(error)

        self._jobs.put(run)
        return future

    def close(self) -> None:
        """Wait for what is queued, then end the worker."""
        self._jobs.put(None)
        self._worker.join()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
