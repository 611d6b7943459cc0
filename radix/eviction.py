"""The order of eviction: unlocked leaves, least recently used first."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from branchline.radix.node import Node


class EvictionQueue:
    """A heap that is corrected when it is read, not when a node is used.

    Every candidate has exactly one entry, whose key is its recency when the entry was made or an
    older one than it has now. Using or locking a node therefore costs nothing here: `pop` meets the
    outdated entry, and drops it or moves it back. Each such move is paid for by the use that caused
    it, so a page costs O(log nodes) amortised.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Node]] = []  # (last use, serial, node)

    def add(self, node: Node) -> None:
        """Makes sure that `node` has an entry, if it is a candidate."""
        if node.is_candidate and not node.queued:
            node.queued = True
            heapq.heappush(self._heap, (node.last_use, node.serial, node))

    def pop(self) -> Node | None:
        """Takes out the least recently used candidate."""
        while self._heap:
            last_use, serial, node = self._heap[0]
            if node.is_candidate and node.last_use != last_use:
                heapq.heapreplace(self._heap, (node.last_use, serial, node))
                continue
            heapq.heappop(self._heap)
            node.queued = False
            if node.is_candidate:
                return node
        return None

    def check(self, nodes: list[Node]) -> None:
        """Asserts that the entries are right for a tree that consists of `nodes`."""
        queued = {node for _, _, node in self._heap}
        assert len(queued) == len(self._heap), "a node has two entries in the eviction queue"
        assert queued <= set(nodes), "the eviction queue holds a node that is not in the tree"
        for last_use, _, node in self._heap:
            assert last_use <= node.last_use, f"queued with a recency it never had: {node}"
        for node in nodes:
            assert node.queued == (node in queued), f"its queued mark is wrong: {node}"
            assert node.queued or not node.is_candidate, f"a candidate is not queued: {node}"
