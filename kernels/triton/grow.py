"""Between changes of the batch, a plan goes on by itself: each row is one position longer."""

from __future__ import annotations

from functools import lru_cache

import triton
import triton.language as tl

from branchline.kernels.triton.tile_shapes import ANYWHERE
from branchline.kernels.triton.variant import Variant

BLOCK = 512  # rows at a time: no fewer than threads, so that no two have the same row
WARPS = 4


@triton.jit
def grow_kernel(
    tile_count,
    row_count,
    chunk,
    positions,
    tiles,
    merges,
    growing,
    part_rows,
    ANYWHERE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program: the last tile of each row takes one position more, or a new tile does.

    Row, token and merge are one number here, because all rows are decodes. A row whose only part
    went to `out` so far gives it a row of the parts when it opens a second one.
    """
    rows = tl.load(row_count)
    longest = tl.load(chunk)
    used = tl.load(tile_count)
    for start in range(0, rows, BLOCK):
        row = start + tl.arange(0, BLOCK)
        inside = row < rows
        position = tl.load(positions + row, mask=inside, other=0)
        tl.store(positions + row, position + 1, mask=inside)
        tile = tiles + tl.load(growing + row, mask=inside, other=0) * 8
        length = tl.load(tile + 4, mask=inside, other=0)
        opens = inside & (length == longest)
        tl.store(tile + 4, length + 1, mask=inside & (length != longest))

        merge = merges + row * 4
        rows_of = part_rows + tl.load(merge + 1, mask=opens, other=0)
        parts = tl.load(merge + 2, mask=opens, other=0)
        tl.store(merge + 2, parts + 1, mask=opens)
        first = tl.load(rows_of, mask=opens, other=0)
        tl.store(tile + 5, first, mask=opens & (tl.load(tile + 5, mask=opens, other=0) < 0))

        place = used + tl.cumsum(opens.to(tl.int32), 0) - 1
        tl.store(growing + row, place, mask=opens)
        new = tiles + place * 8
        tl.store(new, row, mask=opens)
        tl.store(new + 1, row * 0 + 1, mask=opens)
        tl.store(new + 2, tl.load(tile + 2, mask=opens, other=0), mask=opens)
        tl.store(new + 3, tl.load(tile + 3, mask=opens, other=0) + longest, mask=opens)
        tl.store(new + 4, row * 0 + 1, mask=opens)
        tl.store(new + 5, tl.load(rows_of + parts, mask=opens, other=0), mask=opens)
        tl.store(new + 6, row * 0 + ANYWHERE, mask=opens)
        used += tl.sum(opens.to(tl.int32), 0)
    tl.store(tile_count, used)


@lru_cache
def grow_variant() -> Variant:
    """The kernel; it knows nothing of a model."""
    lists = ("positions", "tiles", "merges", "growing", "part_rows")
    return Variant(
        name="grow",
        kernel=grow_kernel,
        types=dict.fromkeys(("tile_count", "row_count", "chunk", *lists), "*i32"),
        constants={"ANYWHERE": ANYWHERE, "BLOCK": BLOCK},
        aligned=frozenset(),
        num_warps=WARPS,
        num_stages=1,
    )


def variants() -> list[Variant]:
    """What is compiled ahead of time."""
    return [grow_variant()]
