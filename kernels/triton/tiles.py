"""Attention over work tiles: one launch for decodes, shared segments and short extends alike.

A tile is a few queries times one run of positions of one row of the page table. Programs are as
many as run at once, and take tiles from a list in device memory, so one launch fits every batch.
(The idea of work lists is FlashInfer's, split runs are FlashDecoding's.)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import triton
import triton.language as tl

from branchline.kernels.triton.launch import INTERPRETED
from branchline.kernels.triton.softmax import attend
from branchline.kernels.triton.tile_shapes import GROUPS, NARROW, SIZES, WIDE
from branchline.kernels.triton.variant import Variant, pointer

if TYPE_CHECKING:
    from branchline.kernels.triton.tile_shapes import Heads


@triton.jit
def tiles_kernel(
    q,
    k_pool,
    v_pool,
    page_table,
    tile_count,
    tiles,
    out,
    parts,
    lse,
    scale,
    table_stride,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    PADDED: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    F32DOT: tl.constexpr,
):
    """A program takes every so manieth pair of a tile and a head of K and V.

    Row m of a block is query head m % PADDED of the tile's query m // PADDED, where PADDED is the
    power of two from GROUP on. A tile's queries follow each other, in `out` or, with part >= 0, in
    `parts` and `lse`.
    """
    m = tl.arange(0, BLOCK_M)
    d = tl.arange(0, SIZE)
    query = m // PADDED
    heads: tl.constexpr = KV_HEADS * GROUP
    works = tl.load(tile_count) * KV_HEADS
    for work in range(tl.program_id(0), works, tl.num_programs(0)):
        tile = tiles + (work // KV_HEADS) * 8
        kv_head = work % KV_HEADS
        token = tl.load(tile)
        used = (query < tl.load(tile + 1)) & (m % PADDED < GROUP)
        table = page_table + tl.load(tile + 2).to(tl.int64) * table_stride
        start = tl.load(tile + 3)
        last = start + tl.load(tile + 4) - 1
        limit = tl.minimum(tl.load(tile + 6) + query, last)
        row = query * heads + kv_head * GROUP + m % PADDED
        lanes = row[:, None] * SIZE + d[None, :]
        queries = q + token.to(tl.int64) * (heads * SIZE)
        queries = tl.load(queries + lanes, mask=used[:, None], other=0.0)
        if F32DOT:
            queries = queries.to(tl.float32)
        highest = tl.full([BLOCK_M], -1.0e30, tl.float32)
        total = tl.zeros([BLOCK_M], tl.float32)
        acc = tl.zeros([BLOCK_M, SIZE], tl.float32)
        for block in range(start, last + 1, BLOCK_N):
            key = block + tl.arange(0, BLOCK_N)
            pages = tl.load(table + tl.minimum(key, last))  # beyond the run: one of its own
            highest, total, acc = attend(
                queries,
                k_pool + kv_head * SIZE,
                v_pool + kv_head * SIZE,
                pages,
                key[None, :] <= limit[:, None],
                scale,
                highest,
                total,
                acc,
                KV_HEADS=KV_HEADS,
                SIZE=SIZE,
                MASKED=True,
                F32DOT=F32DOT,
            )
        seen = total > 0.0  # a query may come before every position of its tile
        total = tl.where(seen, total, 1.0)
        acc = acc / total[:, None]
        part = tl.load(tile + 5)
        if part < 0:
            target = out + token.to(tl.int64) * (heads * SIZE)
            tl.store(target + lanes, acc.to(out.dtype.element_ty), mask=used[:, None])
        else:
            first = part.to(tl.int64) * heads
            tl.store(parts + first * SIZE + lanes, acc, mask=used[:, None])
            value = tl.where(seen, highest + tl.log2(total), -1.0e30)
            tl.store(lse + first + row, value, mask=used)


@dataclass(frozen=True, slots=True)
class Launch:
    """How a kernel is best launched for one head size."""

    block_n: int  # positions of a step of the loop
    warps: int
    stages: int  # odd: pages come from memory in one stage, K and V in the next
    programs: int  # that a multiprocessor holds, by registers and shared memory


# By rows of a tile and head size, for elements of 2 bytes. Without a device to measure, these are
# the ones that leave most bytes in flight without spills: several programs of narrow tiles to a
# multiprocessor, and matrix instructions for 64 rows in wide ones.
_LAUNCHES = {
    (NARROW, 64): Launch(block_n=64, warps=4, stages=5, programs=4),
    (NARROW, 128): Launch(block_n=64, warps=4, stages=5, programs=3),
    (NARROW, 256): Launch(block_n=32, warps=4, stages=5, programs=3),
    (WIDE, 64): Launch(block_n=64, warps=4, stages=3, programs=2),
    (WIDE, 128): Launch(block_n=64, warps=4, stages=3, programs=2),
    (WIDE, 256): Launch(block_n=32, warps=8, stages=3, programs=1),
}
# float32 is for comparisons: without matrix instructions it is registers that are short.
_LAUNCHES_FLOAT32 = {
    NARROW: Launch(block_n=32, warps=8, stages=1, programs=2),
    WIDE: Launch(block_n=16, warps=8, stages=1, programs=1),
}


def tiles_launch(rows: int, heads: Heads) -> Launch:
    """How tiles of NARROW or WIDE rows are launched."""
    if heads.dtype.itemsize > 2 and not INTERPRETED:
        return _LAUNCHES_FLOAT32[rows]
    return _LAUNCHES[rows, max(heads.size, 64)]


@lru_cache
def tiles_variant(rows: int, heads: Heads) -> Variant:
    """The kernel for tiles of NARROW or WIDE rows."""
    how = tiles_launch(rows, heads)
    element = pointer(heads.dtype)
    blocks = 2 * how.block_n * heads.size * heads.dtype.itemsize  # K and V of a step, in bytes
    return Variant(
        name=f"{heads.name} tiles of {rows}",
        kernel=tiles_kernel,
        types=dict.fromkeys(("q", "k_pool", "v_pool", "out"), element)
        | dict.fromkeys(("page_table", "tile_count", "tiles"), "*i32")
        | {"parts": "*fp32", "lse": "*fp32", "scale": "fp32", "table_stride": "i32"},
        constants={
            "KV_HEADS": heads.kv_heads,
            "GROUP": heads.group,
            "PADDED": heads.padded_group,
            "SIZE": heads.size,
            "BLOCK_M": rows,
            "BLOCK_N": how.block_n,
            "F32DOT": INTERPRETED,
        },
        aligned=frozenset(),
        num_warps=how.warps,
        num_stages=how.stages,
        wide_loads=blocks // (how.warps * 32 * 16),
        uses_dot=heads.dtype.itemsize == 2,
    )


def variants() -> list[Variant]:
    """What is compiled ahead of time."""
    shipped = SIZES + GROUPS
    return [tiles_variant(rows, heads) for heads in shipped for rows in (NARROW, WIDE)]
