"""What a batch's attention consists of: tiles, a few queries over a run of positions each.

::

    token   0  1  2        two rows decode over a shared prefix, a third extends by one token
    tiles   [0  1]         over the segment [0, 1000): K and V are read once for both
            [0]            over its own [1000, 1010)
               [1]         over its own [1000, 1100)
                  [2]      over all of [0, 64)

A query that is in one tile has its result there; the others' parts are merged afterwards.

A tile of few queries is computed for several heads at once, if that leaves work for all threads: K
and V of a position lie side by side for all heads, and memory is fastest read in order.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from branchline.kernels.kernel_set import Segment

# Query heads that a tile has at most, over one K and V head: a score for each fits the cache.
TILE_ROWS = 96
# Positions whose K and V are in the cache at once.
TILE_POSITIONS = 64
# So many pieces of work for each thread, if need be by cutting long runs: threads end together.
_PIECES = 12
_LEAST_PIECES = 4  # for each thread: no heads are put together where that would leave fewer
_LEAST_CUT = 2 * TILE_POSITIONS
# What reading a position costs, in query heads that are multiplied with it.
_READ = 12


@dataclass(frozen=True, slots=True)
class Tiles:
    """The tiles of a batch of T tokens, as the kernels take them. All arrays are int64."""

    # [pieces, 7]: first member, members, slot, start, end of the run of positions, first head of
    # K and V, heads
    runs: np.ndarray
    members: np.ndarray  # [members, 2]: token, and the place of its part, −1 if it has only one
    positions: np.ndarray  # [T]
    merges: np.ndarray  # [n, 3]: token, its first part, its parts; for those with several
    parts: int


_Run = tuple["range | list[int]", int, int, int]  # tokens, slot, start, end


@dataclass(slots=True)
class _Layout:
    """Tiles as they are found."""

    kv_heads: int
    runs: list[tuple[int, int, int, int, int, int, int]] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)

    def add(self, tokens: Sequence[int], slot: int, start: int, end: int, together: int) -> None:
        """A tile, for `together` heads at once."""
        first, count = len(self.tokens), len(tokens)
        for head in range(0, self.kv_heads, together):
            heads = min(together, self.kv_heads - head)
            self.runs.append((first, count, slot, start, end, head, heads))
        self.tokens += tokens


def lay_out(
    q_indptr: Sequence[int],
    kv_lens: Sequence[int],
    slots: Sequence[int],
    segments: Sequence[Segment],
    *,
    group: int,
    kv_heads: int,
    threads: int,
) -> Tiles:
    """The tiles for a batch; see `KernelSet.plan`. `group` query heads share a K and V head."""
    most = max(1, TILE_ROWS // group)

    runs = list(_runs(q_indptr, kv_lens, slots, segments, most))
    costs = [(end - start) * (_READ + len(tokens) * group) for tokens, _, start, end in runs]
    fair = sum(costs) * kv_heads / (_PIECES * threads)
    spare = len(runs) * kv_heads // (_LEAST_PIECES * threads)
    layout = _Layout(kv_heads)
    for at in sorted(range(len(runs)), key=costs.__getitem__, reverse=True):  # threads end together
        tokens, slot, start, end = runs[at]
        together = min(kv_heads, max(1, min(spare, most // len(tokens))))
        cost = costs[at] * together
        pieces = min(-(-cost // fair), (end - start) // _LEAST_CUT) if cost > fair else 1
        for first, last in _cuts(start, end, max(1, int(pieces))):
            layout.add(tokens, slot, first, last, together)
    counts: np.ndarray = np.diff(np.array(q_indptr, dtype=np.int64))
    before: np.ndarray = np.array(kv_lens, dtype=np.int64) - np.array(q_indptr[1:])
    positions = np.arange(q_indptr[-1], dtype=np.int64) + np.repeat(before, counts)
    return _number_parts(layout, positions)


def _runs(
    q_indptr: Sequence[int],
    kv_lens: Sequence[int],
    slots: Sequence[int],
    segments: Sequence[Segment],
    most: int,
) -> Iterator[_Run]:
    """Tokens, slot, start and end of each run: the shared ones, then what rows have for themselves.

    Queries of a row that fill a tile have nothing to gain from a segment: they read all of the
    row's positions, up to the last query; what is later than a query is masked.
    """
    shared_from = [last - (last - first) % most for first, last in itertools.pairwise(q_indptr)]
    own_from = [0] * len(kv_lens)
    for segment in segments:
        tokens = [t for row in segment.rows for t in range(shared_from[row], q_indptr[row + 1])]
        for row in segment.rows:
            own_from[row] = segment.end
        for first in range(0, len(tokens), most):
            block = tokens[first : first + most]
            yield block, slots[segment.rows[0]], segment.start, segment.end
    for row, (first, last) in enumerate(itertools.pairwise(q_indptr)):
        before = kv_lens[row] - last  # positions are tokens plus this
        for start in range(first, last, most):
            end = min(start + most, last)
            begin = own_from[row] if start >= shared_from[row] else 0
            yield range(start, end), slots[row], begin, before + end


def _cuts(start: int, end: int, pieces: int) -> Iterator[tuple[int, int]]:
    """Cut [start, end) into about `pieces` runs of whole blocks of positions."""
    step = -(-(end - start) // pieces)
    step = -(-step // TILE_POSITIONS) * TILE_POSITIONS
    for first in range(start, end, step):
        yield first, min(first + step, end)


def _number_parts(layout: _Layout, positions: np.ndarray) -> Tiles:
    """Give each part of a query that has several its place: those of one query side by side."""
    tokens = np.array(layout.tokens, dtype=np.int64)
    runs = np.array(layout.runs, dtype=np.int64)
    if len(tokens) == len(positions):  # each query is in one tile
        members = np.stack([tokens, np.full_like(tokens, -1)], axis=1)
        return Tiles(runs, members, positions, np.empty((0, 3), dtype=np.int64), 0)
    counts = np.bincount(tokens, minlength=len(positions))
    several = np.where(counts > 1, counts, 0)
    first_part = np.cumsum(several) - several
    order = np.argsort(tokens, kind="stable")
    ordinal = np.empty_like(tokens)
    ordinal[order] = np.arange(len(tokens)) - np.repeat(np.cumsum(counts) - counts, counts)
    places = np.where(several[tokens] > 0, first_part[tokens] + ordinal, -1)
    merged = np.flatnonzero(several)
    merges = np.stack([merged, first_part[merged], several[merged]], axis=1)
    members = np.stack([tokens, places], axis=1)
    return Tiles(runs, members, positions, merges.astype(np.int64), int(several.sum()))
