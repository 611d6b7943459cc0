"""Plans attention as work tiles: what each program of the tile kernels reads, on the host.

::

    a batch     tiles                                   a row of the page table
    4 decodes   one query × a chunk of its own part     ├─ segment ─┼─── own part ───┤
    sharing     their queries × a chunk of the segment  ├─ chunk ─┼─┼─ chunk ─┼──────┤
    an extend   up to 64 rows × a chunk, causal

Chunks are as long as leaves every program of the device one tile or so, between 64 and 1,024
positions; a plan that is larger than its buffers has longer ones, or fewer segments. A token whose
positions lie in several tiles has as many parts, which are merged afterwards. An extend of LONG
tokens or more reads all its positions by itself: its queries are so many that sharing saves
nothing.

Everything here is numpy over whole batches: 256 rows take well under a millisecond.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from branchline.kernels.triton.plan_layout import BLOCK, COUNTS, MERGE, TILE, Capacity, layout
from branchline.kernels.triton.tile_blocks import Blocks, Rows, blocks_of, counter
from branchline.kernels.triton.tile_shapes import LONG

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from branchline.kernels.kernel_set import Segment
    from branchline.kernels.triton.tile_shapes import Geometry

    Ints = NDArray[np.int64]
    Words = NDArray[np.int32]

_SHORTEST, _LONGEST = 64, 1024  # positions of a chunk: less costs too many parts


@dataclass(frozen=True, slots=True)
class HostPlan:
    """A plan's lists, as `plan_layout` describes them."""

    lists: dict[str, Ints]  # by name, without `counts`
    chunk: int  # positions of a narrow tile
    part_rows: int
    steps: int  # how often `grow` can make every row one longer; 0 unless all are decodes

    @property
    def capacity(self) -> Capacity:
        """What this plan needs, with the tiles that growing will open."""
        lists = self.lists
        return Capacity(
            tokens=len(lists["positions"]),
            narrow=len(lists["narrow"]) + len(lists["growing"]),
            wide=len(lists["wide"]),
            long=len(lists["long"]),
            merges=len(lists["merges"]),
            growing=len(lists["growing"]),
            part_rows=self.part_rows,
        )

    def pack(self, capacity: Capacity, out: Words | None = None) -> Words:
        """The words of the buffer, written to `out` where given; what lists leave is stale."""
        assert capacity.holds(self.capacity), (capacity, self.capacity)
        where = layout(capacity)
        words = np.zeros(capacity.words, np.int32) if out is None else out
        counts = [len(self.lists[name]) for name in COUNTS[:-1]]
        words[where["counts"]][::4] = [*counts, self.chunk]
        for name, values in self.lists.items():
            start = where[name].start
            words[start : start + values.size] = values.reshape(-1)
        return words


def plan_tiles(
    geometry: Geometry,
    limits: Capacity,
    q_indptr: Sequence[int],
    kv_lens: Sequence[int],
    slots: Sequence[int],
    segments: Sequence[Segment] = (),
) -> HostPlan:
    """The plan of a batch: arguments of `KernelSet.plan`, for buffers with room for `limits`.

    With fewer segments, and in the end with none, everything fits.
    """
    rows = Rows.of(q_indptr, kv_lens, slots)
    assert limits.tokens >= len(rows.positions), (limits.tokens, len(rows.positions))
    while True:
        blocks = blocks_of(geometry, rows, segments)
        plan = _cut(geometry, limits, rows, blocks)
        if plan is not None:
            return plan
        assert segments, "a plan without segments must fit"
        segments = segments[: len(segments) // 2]  # root to leaf: the leaves go first


def _cut(geometry: Geometry, limits: Capacity, rows: Rows, blocks: Blocks) -> HostPlan | None:
    """Cut blocks into tiles, in the shortest chunks that fit; None: not even whole ones do."""
    length = blocks.end - blocks.start
    longest = int(length.max(initial=0))
    narrow = _chunk(length[blocks.narrow], geometry.kv_heads, geometry.narrow_programs)
    wide = _chunk(length[~blocks.narrow], geometry.kv_heads, geometry.wide_programs)
    while True:
        plan = _tiles(geometry, rows, blocks, narrow, wide)
        if limits.holds(plan.capacity):
            return plan
        if min(narrow, wide) >= longest:
            return None
        narrow, wide = 2 * narrow, 2 * wide


def _chunk(length: Ints, kv_heads: int, programs: int) -> int:
    """The length of chunks that gives each program about one tile."""
    share = -(-int(length.sum()) * kv_heads // (programs * 64)) * 64
    return min(max(share, _SHORTEST), _LONGEST)


def _tiles(
    geometry: Geometry, rows: Rows, blocks: Blocks, narrow_chunk: int, wide_chunk: int
) -> HostPlan:
    chunk = np.where(blocks.narrow, narrow_chunk, wide_chunk)
    pieces = -(-(blocks.end - blocks.start) // chunk)
    block, piece = np.repeat(np.arange(len(pieces)), pieces), counter(pieces)
    start = blocks.start[block] + piece * chunk[block]
    length = np.minimum(chunk[block], blocks.end[block] - start)
    token, count = blocks.token[block], blocks.count[block]
    direct = (blocks.alone & (pieces == 1))[block]
    taken = np.where(direct, 0, count)
    part = np.where(direct, -1, np.cumsum(taken) - taken)
    position = blocks.position[block]
    tiles = _records(TILE, token, count, blocks.slot[block], start, length, part, position)

    is_narrow = blocks.narrow[block]
    wide = np.flatnonzero(~is_narrow)
    if len(wide):  # what reads the same positions runs at the same time
        wide = wide[np.lexsort((piece[wide], blocks.run[block[wide]]))]
    # Rows grow where all are decodes; their own blocks are the last ones, one for each row.
    grow = len(rows.count) == len(rows.positions)
    last = np.cumsum(pieces)[-len(rows.count) :] - 1 if grow else np.zeros(0, np.int64)
    spare = np.where(direct[last], 2, 1)  # a second part gives the first one a row, too
    merges, part_rows = _merges(len(rows.positions), token, taken, part, spare)
    lists = {
        "positions": rows.positions,
        "narrow": tiles[is_narrow],
        "wide": tiles[wide],
        "long": _long_blocks(rows, geometry.long_block),
        "merges": merges,
        "growing": np.cumsum(is_narrow)[last] - 1,
        "part_rows": part_rows,
    }
    steps = 2 * narrow_chunk - int(length[last].max()) if grow else 0
    return HostPlan(lists, narrow_chunk, len(part_rows), steps)


def _merges(
    tokens: int, tile_token: Ints, taken: Ints, part: Ints, spare: Ints
) -> tuple[Ints, Ints]:
    """Which rows of the parts belong to which token, in the order of tiles, then the spare ones."""
    within = counter(taken)
    spare_token = np.repeat(np.arange(len(spare)), spare)
    token = np.concatenate((np.repeat(tile_token, taken) + within, spare_token))
    used = len(within)
    row = np.concatenate((np.repeat(part, taken) + within, used + np.arange(len(spare_token))))
    part_rows = row[np.argsort(token, kind="stable")]
    total = np.bincount(token, minlength=tokens)
    first = np.cumsum(total) - total
    count = total.copy()
    if len(spare):
        count -= 1  # the last one is for the tile that growing opens
    merged = np.flatnonzero(total)
    return _records(MERGE, merged, first[merged], count[merged]), part_rows


def _long_blocks(rows: Rows, size: int) -> Ints:
    """Blocks of the queries of long extends, those that read most first."""
    long = np.flatnonzero(rows.count >= LONG)
    pieces = -(-rows.count[long] // size)
    row = np.repeat(long, pieces)
    skipped = counter(pieces) * size
    count = np.minimum(size, rows.count[row] - skipped)
    position = rows.kv_len[row] - rows.count[row] + skipped
    blocks = _records(BLOCK, rows.start[row] + skipped, count, rows.slot[row], position)
    return blocks[np.argsort(-position, kind="stable")]


def _records(words: int, *columns: Ints) -> Ints:
    """One record of `words` words for each element of the columns; words without one are zero."""
    records = np.zeros((len(columns[0]), words), np.int64)
    for word, column in enumerate(columns):
        records[:, word] = column
    return records
