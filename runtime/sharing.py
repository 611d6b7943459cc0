"""Which prefixes the rows of a batch share, and which are worth reading once for all of them.

::

    rows    a b c d e            segments
    root ── 1000 tokens ─┬─ a    [0, 1000) of a b c d e
                         ├─ 300 ─┬─ b    [1000, 1300) of b c
                         │       └─ c
                         └─ 5 ─┬─ d    too short: d and e read it for themselves
                               └─ e
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from branchline.kernels import Segment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from branchline.radix import Node
    from branchline.runtime.batch import Row


@dataclass(frozen=True, slots=True)
class Sharing:
    """An order of a batch's rows in which those that share stand together, and their segments."""

    order: tuple[int, ...]
    segments: tuple[Segment, ...]  # rows numbered by their place in `order`; root to leaf


class SharingPlanner:
    """Keeps the last sharing: it holds until rows come or go, or their parts of the tree grow."""

    def __init__(self, segment_cost: int | None) -> None:
        """Plan for a device with this cost of a segment (see `KernelSet`); None: share nothing."""
        self._segment_cost = segment_cost
        self._key: tuple[tuple[int, int], ...] = ()
        self._sharing = Sharing((), ())

    def plan(self, rows: Sequence[Row]) -> Sharing:
        """The sharing of the rows of a batch."""
        if self._segment_cost is None:
            return Sharing(tuple(range(len(rows))), ())
        key = tuple((row.request.id, row.shareable) for row in rows)
        if key != self._key:
            self._key, self._sharing = key, share(rows, self._segment_cost)
        return self._sharing


def share(rows: Sequence[Row], segment_cost: int) -> Sharing:
    """Walk down the tree with all rows; where they part, part with them.

    A segment is made where it saves more reads of a position than `segment_cost`. Where it does
    not, what it would have held goes to the segments below it, or to the rows themselves.
    """
    walk = _Walk([_path(row) for row in rows], [row.shareable for row in rows], segment_cost)
    walk.visit(list(range(len(rows))), depth=0, start=0)
    place = {row: index for index, row in enumerate(walk.order)}
    segments = [
        Segment(start, end, tuple(sorted(place[row] for row in members)))
        for start, end, members in walk.segments
    ]
    return Sharing(tuple(walk.order), tuple(segments))


@dataclass(slots=True)
class _Walk:
    paths: list[list[Node]]  # of each row, root to leaf
    shareable: list[int]  # of each row: positions before its first query that are the tree's
    segment_cost: int
    order: list[int] = field(default_factory=list)
    segments: list[tuple[int, int, list[int]]] = field(default_factory=list)

    def visit(self, rows: list[int], depth: int, start: int) -> None:
        """Rows whose paths agree up to `depth` and whose segments so far end at `start`."""
        groups: dict[Node | None, list[int]] = {}
        for row in rows:
            goes_on = len(self.paths[row]) > depth and self.shareable[row] > start
            groups.setdefault(self.paths[row][depth] if goes_on else None, []).append(row)
        for node, group in groups.items():
            if node is None or len(group) == 1:
                self.order += group
            else:
                self._visit_group(group, depth, start)

    def _visit_group(self, group: list[int], depth: int, start: int) -> None:
        """Rows that go on to the same node, and perhaps further together."""
        path = self.paths[group[0]]
        parting = depth + 1
        while parting < len(path) and all(
            self.paths[row][parting : parting + 1] == [path[parting]] for row in group
        ):
            parting += 1
        limit = path[parting - 1].end
        ends = {row: min(self.shareable[row], limit) for row in group}
        for end in _best_cuts(sorted(ends.values()), start, self.segment_cost):
            members = [row for row in group if ends[row] >= end]
            self.segments.append((start, end, members))
            start = end
        # A row that computes some of these positions itself goes no further than it can share.
        # Those that stay stand last, so the members of each segment stand together.
        leaving = [row for row in group if ends[row] < limit]
        self.order += sorted(leaving, key=ends.__getitem__)
        self.visit([row for row in group if ends[row] == limit], parting, start)


_NOWHERE = -(2**60)  # less than anything that can be saved


def _best_cuts(ends: list[int], start: int, segment_cost: int) -> list[int]:
    """Where to end segments, the first of which begins at `start`, to save most; maybe nowhere.

    `ends`, ascending, has the position up to which each row can share. Rows beyond a segment's end
    are its members; a segment saves its length for all of them but one.
    """
    total = len(ends)
    places = [start, *sorted({end for end in ends if end > start})]
    # For each place: the most that segments up to it can save, and the place before it.
    best: list[tuple[int, int]] = [(0, 0)]
    for index, end in enumerate(places[1:], start=1):
        members = total - bisect_left(ends, end)
        gains = [(members - 1) * (end - place) - segment_cost for place in places[:index]]
        saved = [
            before + gain if gain > 0 else _NOWHERE
            for (before, _), gain in zip(best, gains, strict=True)
        ]
        previous = max(range(index), key=saved.__getitem__)
        best.append((saved[previous], previous))
    index = max(range(len(best)), key=lambda index: best[index][0])
    cuts = []
    while index:
        cuts.append(places[index])
        index = best[index][1]
    return cuts[::-1]


def _path(row: Row) -> list[Node]:
    """The nodes of a request's part of the tree, without the root."""
    nodes = []
    node = row.request.node
    while node is not None and node.parent is not None:
        nodes.append(node)
        node = node.parent
    return nodes[::-1]
