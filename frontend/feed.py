"""A log that grows while others read it, from threads and from event loops, without polling."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

T = TypeVar("T")


class Feed(Generic[T]):
    """Items in the order in which they were put; every reader gets all of them."""

    def __init__(self) -> None:
        self._items: list[T] = []
        self._lock = threading.Lock()
        self._waiting: list[Future[None]] = []

    def put(self, item: T) -> None:
        """Add an item and wake the readers."""
        with self._lock:
            self._items.append(item)
        self._wake()

    def items(self) -> list[T]:
        """What has been put until now."""
        return self._items.copy()

    def follow(self, end: Future[Any]) -> Iterator[T]:
        """The items from the first one on, as they come, until `end` is done and all are read."""
        end.add_done_callback(lambda _: self._wake())
        position, ended = 0, False
        while not ended:
            # Subscribe before looking, so that whatever comes after the look wakes this reader.
            changed = self._next_change()
            ended = end.done()
            while position < len(self._items):
                yield self._items[position]
                position += 1
            if not ended:
                changed.result()

    async def afollow(self, end: Future[Any]) -> AsyncIterator[T]:
        """`follow` for a reader on any event loop."""
        end.add_done_callback(lambda _: self._wake())
        position, ended = 0, False
        while not ended:
            changed = self._next_change()
            ended = end.done()
            while position < len(self._items):
                yield self._items[position]
                position += 1
            if not ended:
                await asyncio.wrap_future(changed)

    def _next_change(self) -> Future[None]:
        change: Future[None] = Future()
        with self._lock:
            self._waiting.append(change)
        return change

    def _wake(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for change in waiting:
            if change.set_running_or_notify_cancel():  # an async reader may have been cancelled
                change.set_result(None)
