"""Attention of a long run of new tokens over a cached prefix and themselves."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import triton
import triton.language as tl

from branchline.kernels.triton.launch import INTERPRETED
from branchline.kernels.triton.softmax import attend
from branchline.kernels.triton.tile_shapes import SIZES
from branchline.kernels.triton.variant import Variant, pointer

if TYPE_CHECKING:
    from branchline.kernels.triton.tile_shapes import Heads


@triton.jit
def extend_kernel(
    q,
    k_pool,
    v_pool,
    page_table,
    block_count,
    blocks,
    out,
    scale,
    table_stride,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    F32DOT: tl.constexpr,
):
    """A program has a block of at most BLOCK_M new tokens (axis 0) and a query head (axis 1).

    The K and V of new tokens are in their pages already, so one loop over the row's pages covers
    prefix and new tokens. Blocks that every query sees whole need no mask.
    """
    index = tl.program_id(0)
    if index >= tl.load(block_count):
        return
    head = tl.program_id(1)
    block = blocks + index * 4
    count = tl.load(block + 1)
    first = tl.load(block + 3)
    table = page_table + tl.load(block + 2).to(tl.int64) * table_stride
    m = tl.arange(0, BLOCK_M)
    d = tl.arange(0, SIZE)
    used = (m < count)[:, None]
    there = (tl.load(block).to(tl.int64) * (KV_HEADS * GROUP) + head) * SIZE
    lanes = m[:, None] * (KV_HEADS * GROUP * SIZE) + d[None, :]
    queries = tl.load(q + there + lanes, mask=used, other=0.0)
    if F32DOT:
        queries = queries.to(tl.float32)
    keys = k_pool + head // GROUP * SIZE
    values = v_pool + head // GROUP * SIZE
    end = first + count
    whole = (first + 1) // BLOCK_N * BLOCK_N
    highest = tl.full([BLOCK_M], -1.0e30, tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, SIZE], tl.float32)
    for start in range(0, whole, BLOCK_N):
        pages = tl.load(table + start + tl.arange(0, BLOCK_N))
        highest, total, acc = attend(
            queries,
            keys,
            values,
            pages,
            None,
            scale,
            highest,
            total,
            acc,
            KV_HEADS=KV_HEADS,
            SIZE=SIZE,
            MASKED=False,
            F32DOT=F32DOT,
        )
    for start in range(whole, end, BLOCK_N):
        key = start + tl.arange(0, BLOCK_N)
        pages = tl.load(table + tl.minimum(key, end - 1))
        highest, total, acc = attend(
            queries,
            keys,
            values,
            pages,
            key[None, :] <= (first + m)[:, None],
            scale,
            highest,
            total,
            acc,
            KV_HEADS=KV_HEADS,
            SIZE=SIZE,
            MASKED=True,
            F32DOT=F32DOT,
        )
    acc = acc / total[:, None]  # every query sees its own position: no total is zero
    tl.store(out + there + lanes, acc.to(out.dtype.element_ty), mask=used)


@dataclass(frozen=True, slots=True)
class Launch:
    """How the kernel is best launched for one head size."""

    block_m: int  # queries of a program
    block_n: int  # positions of a step of the loop
    warps: int
    stages: int


# By head size, for elements of 2 bytes: the largest blocks that spill nowhere.
_LAUNCHES = {
    64: Launch(block_m=128, block_n=64, warps=8, stages=3),
    128: Launch(block_m=128, block_n=64, warps=8, stages=3),
    256: Launch(block_m=64, block_n=32, warps=8, stages=3),
}
_LAUNCH_FLOAT32 = Launch(block_m=32, block_n=16, warps=8, stages=1)


def extend_launch(heads: Heads) -> Launch:
    """How long extends are launched."""
    if heads.dtype.itemsize > 2 and not INTERPRETED:
        return _LAUNCH_FLOAT32
    return _LAUNCHES[max(heads.size, 64)]


@lru_cache
def extend_variant(heads: Heads) -> Variant:
    """The kernel for a model's heads."""
    how = extend_launch(heads)
    blocks = 2 * how.block_n * heads.size * heads.dtype.itemsize  # K and V of a step, in bytes
    return Variant(
        name=f"{heads.name} extend",
        kernel=extend_kernel,
        types=dict.fromkeys(("q", "k_pool", "v_pool", "out"), pointer(heads.dtype))
        | dict.fromkeys(("page_table", "block_count", "blocks"), "*i32")
        | {"scale": "fp32", "table_stride": "i32"},
        constants={
            "KV_HEADS": heads.kv_heads,
            "GROUP": heads.group,
            "SIZE": heads.size,
            "BLOCK_M": how.block_m,
            "BLOCK_N": how.block_n,
            "F32DOT": INTERPRETED,
        },
        aligned=frozenset(),
        num_warps=how.warps,
        num_stages=how.stages,
        wide_loads=2 * blocks // (how.warps * 32 * 16),  # there are two loops
        uses_dot=heads.dtype.itemsize == 2,
    )


def variants() -> list[Variant]:
    """What is compiled ahead of time."""
    return [extend_variant(heads) for heads in SIZES]
