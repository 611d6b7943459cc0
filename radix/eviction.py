"""The order of eviction: unlocked leaves, the least worth keeping first, then the least recent."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from branchline.radix.node import Standing

if TYPE_CHECKING:
    from branchline.radix.node import Node

LEFT_BEHIND = 64  # entries, before it is worth clearing them away


class EvictionQueue:
    """A heap for each standing, corrected when it is read, not when a node is used.

    Every candidate has an entry in the heap of its standing or of a lower one, whose key is its
    recency when the entry was made or an older one than it has now. Using, locking or needing a
    node therefore costs nothing here: `pop` meets the outdated entry, and drops it or moves it on.
    Each such move is paid for by the use that caused it, so a page costs O(log nodes) amortised.

    Only a node whose standing falls must be told of (`fell`): it gets another entry, and the one it
    had is left behind. What is left behind is cleared away when it is half of all there is.
    """

    def __init__(self) -> None:
        # (last use, serial, node), by standing
        self._heaps: tuple[list[tuple[int, int, Node]], ...] = tuple([] for _ in Standing)
        self._left_behind = 0  # entries, at most

    def add(self, node: Node) -> None:
        """Makes sure that `node` has an entry where it stands, if it is a candidate."""
        standing = node.standing
        if node.is_candidate and not node.queued & 1 << standing:
            node.queued |= 1 << standing
            heapq.heappush(self._heaps[standing], (node.last_use, node.serial, node))

    def fell(self, node: Node) -> None:
        """Takes note that `node` is worth less than before."""
        self._left_behind += (node.queued >> node.standing + 1).bit_count()
        self.add(node)
        if self._left_behind > max(LEFT_BEHIND, sum(map(len, self._heaps)) // 2):
            self._clear_away()

    def pop(self) -> Node | None:
        """Takes out the candidate that goes first."""
        for standing, heap in enumerate(self._heaps):
            while heap:
                last_use, serial, node = heap[0]
                stands_here = node.is_candidate and node.standing == standing
                if stands_here and node.last_use != last_use:
                    heapq.heapreplace(heap, (node.last_use, serial, node))
                    continue
                heapq.heappop(heap)
                node.queued &= ~(1 << standing)
                if stands_here:
                    return node
                self.add(node)  # it has risen since
        return None

    def _clear_away(self) -> None:
        nodes = {node for heap in self._heaps for _, _, node in heap}
        for heap in self._heaps:
            heap.clear()
        for node in sorted(nodes, key=lambda node: node.serial):
            node.queued = 0
            self.add(node)
        self._left_behind = 0

    def check(self, nodes: list[Node]) -> None:
        """Asserts that the entries are right for a tree that consists of `nodes`."""
        gone = 0
        for standing, heap in enumerate(self._heaps):
            queued = {node for _, _, node in heap}
            assert len(queued) == len(heap), "a node has two entries in one heap"
            for last_use, _, node in heap:
                assert last_use <= node.last_use, f"queued with a recency it never had: {node}"
            for node in nodes:
                marked = bool(node.queued & 1 << standing)
                assert marked == (node in queued), f"its queued mark is wrong: {node}"
            gone += len(queued.difference(nodes))
        assert gone <= self._left_behind, f"{gone} entries of nodes that are not in the tree"
        for node in nodes:
            found = bool(node.queued & (2 << node.standing) - 1)
            assert found or not node.is_candidate, f"a candidate is not queued: {node}"
