"""Where the parts of an attention plan lie in its one buffer of int32 words.

::

    counts      how many of each list are used, and the length of a chunk: 4 words each
    positions   of each token
    narrow      tiles of at most 16 rows (query heads × queries): token, queries, slot, start,
                length, part, position of the first query, 0
    wide        tiles of at most 64 rows
    long        blocks of long extends: token, queries, slot, position of the first query
    merges      tokens of several parts: token, place in part_rows, parts, 0
    growing     the last tile of each row: of narrow, where every row of the batch is a decode
    part_rows   the rows of a token's parts, prefix to suffix; where rows grow, with room for one

A list has a fixed capacity, and each begins at a multiple of 16 bytes, so a plan of another batch
goes to the same addresses with one copy, and a CUDA graph need not know.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import TYPE_CHECKING

from branchline.kernels.triton.tile_shapes import LONG, NARROW, WIDE

if TYPE_CHECKING:
    from branchline.kernels.triton.tile_shapes import Geometry

# The words of `counts`; 4 apart, so that each is where a pointer may be.
COUNTS = ("narrow", "wide", "long", "merges", "growing", "chunk")
TILE, BLOCK, MERGE = 8, 4, 4  # words of a record

# Parts of a token that there is room for while tokens are few: its own and three segments' …
_PARTS = 4
# … and beyond so many tokens, its own and one segment's: parts are as large as q in float32.
_MANY = 1024


@dataclass(frozen=True, slots=True)
class Capacity:
    """How much of everything a plan's buffers have room for."""

    tokens: int
    narrow: int  # tiles, those that growing will open included
    wide: int
    long: int
    merges: int
    growing: int
    part_rows: int

    @classmethod
    def of(cls, tokens: int, geometry: Geometry) -> Capacity:
        """For any batch of at most `tokens` tokens: what does not fit is read in longer chunks.

        The tiles that fill the device come on top of those that rows need anyway.
        """
        narrow_fill = 2 * -(-geometry.narrow_programs // geometry.kv_heads)
        wide_fill = 2 * -(-geometry.wide_programs // geometry.kv_heads)
        parts = _PARTS * min(tokens, _MANY) + 2 * max(tokens - _MANY, 0)
        has_wide = tokens * geometry.padded_group > NARROW
        has_long = tokens >= LONG
        return cls(
            tokens=tokens,
            narrow=4 * tokens + narrow_fill,
            wide=tokens + wide_fill if has_wide else 0,
            long=-(-tokens // geometry.long_block) + tokens // LONG if has_long else 0,
            merges=tokens,
            growing=tokens,
            part_rows=parts + narrow_fill + wide_fill * WIDE // geometry.padded_group * has_wide,
        )

    def holds(self, other: Capacity) -> bool:
        """Whether what `other` is exactly enough for fits."""
        return all(getattr(self, f.name) >= getattr(other, f.name) for f in fields(self))

    @property
    def words(self) -> int:
        """The length of the buffer."""
        return int(layout(self)["end"].stop)


@lru_cache(maxsize=256)
def layout(capacity: Capacity) -> dict[str, slice]:
    """The words of each part of the buffer by name; `end` is empty, and where they end."""
    sizes = {
        "counts": 4 * len(COUNTS),
        "positions": capacity.tokens,
        "narrow": TILE * capacity.narrow,
        "wide": TILE * capacity.wide,
        "long": BLOCK * capacity.long,
        "merges": MERGE * capacity.merges,
        "growing": capacity.growing,
        "part_rows": capacity.part_rows,
        "end": 0,
    }
    starts = itertools.accumulate((-(-size // 4) * 4 for size in sizes.values()), initial=0)
    return {
        name: slice(start, start + size)
        for (name, size), start in zip(sizes.items(), starts, strict=False)
    }
