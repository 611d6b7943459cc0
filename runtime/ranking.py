"""The least of some items whose keys change."""

from __future__ import annotations

import heapq
import itertools
from typing import Generic, TypeAlias, TypeVar

Item = TypeVar("Item")
Key: TypeAlias = tuple[int, ...]

SLACK = 16  # outdated entries that are not worth a rebuild

_serials = itertools.count()  # keeps the heap from comparing items


class Ranking(Generic[Item]):
    """Items with their keys, the least one at hand.

    A heap whose outdated entries are dropped when they come up, and all at once when they are the
    majority: a change costs O(log n) amortised, and what has left is not kept alive for long.
    """

    __slots__ = ("_heap", "_keys")

    def __init__(self) -> None:
        self._keys: dict[Item, Key] = {}
        self._heap: list[tuple[Key, int, Item]] = []

    def __len__(self) -> int:
        return len(self._keys)

    def put(self, item: Item, key: Key | None) -> None:
        """Rank `item` by `key` from now on; None: take it out, if it is there."""
        if key is None:
            self._keys.pop(item, None)
        elif self._keys.get(item) != key:
            self._keys[item] = key
            heapq.heappush(self._heap, (key, next(_serials), item))
        if len(self._heap) > 2 * len(self._keys) + SLACK:
            self._heap = [(key, next(_serials), item) for item, key in self._keys.items()]
            heapq.heapify(self._heap)

    def first(self) -> Item | None:
        """The item with the least key."""
        while self._heap:
            key, _, item = self._heap[0]
            if self._keys.get(item) == key:
                return item
            heapq.heappop(self._heap)
        return None

    def least(self) -> Key | None:
        """The least key."""
        item = self.first()
        return None if item is None else self._keys[item]
