"""Merges the parts of a query by their log-sum-exp: exact, for softmax over a union of keys."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import triton
import triton.language as tl

from branchline.kernels.triton.tile_shapes import SIZES
from branchline.kernels.triton.variant import Variant, pointer

if TYPE_CHECKING:
    from branchline.kernels.triton.tile_shapes import Heads

BLOCK = 16  # parts at a time
WARPS = 4


@triton.jit
def combine_kernel(
    merge_count,
    merges,
    part_rows,
    parts,
    lse,
    out,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A program takes every so manieth token of `merges`, and has one head (axis 1).

    Parts are merged prefix to suffix, BLOCK at a time, whatever program made them. A token with one
    part was written by its tile.
    """
    head = tl.program_id(1)
    d = tl.arange(0, SIZE)
    for index in range(tl.program_id(0), tl.load(merge_count), tl.num_programs(0)):
        merge = merges + index * 4
        count = tl.load(merge + 2)
        if count > 1:
            first = tl.load(merge + 1)
            highest = -1.0e30
            total = 0.0
            acc = tl.zeros([SIZE], tl.float32)
            for start in range(0, count, BLOCK):
                part = start + tl.arange(0, BLOCK)
                inside = part < count
                place = tl.load(part_rows + first + part, mask=inside, other=0)
                row = place.to(tl.int64) * HEADS + head
                weight = tl.load(lse + row, mask=inside, other=float("-inf"))
                higher = tl.maximum(highest, tl.max(weight, 0))
                weight = tl.exp2(weight - higher)
                shrink = tl.exp2(highest - higher)
                block = parts + row[:, None] * SIZE + d[None, :]
                values = tl.load(block, mask=inside[:, None], other=0.0)
                total = total * shrink + tl.sum(weight, 0)
                acc = acc * shrink + tl.sum(values * weight[:, None], 0)
                highest = higher
            target = out + (tl.load(merge).to(tl.int64) * HEADS + head) * SIZE
            tl.store(target + d, (acc / total).to(out.dtype.element_ty))


@lru_cache
def combine_variant(heads: Heads) -> Variant:
    """The kernel for a model's heads."""
    return Variant(
        name=f"{heads.name} combine",
        kernel=combine_kernel,
        types=dict.fromkeys(("merge_count", "merges", "part_rows"), "*i32")
        | {"parts": "*fp32", "lse": "*fp32", "out": pointer(heads.dtype)},
        constants={"HEADS": heads.kv_heads * heads.group, "SIZE": heads.size, "BLOCK": BLOCK},
        aligned=frozenset(),
        num_warps=WARPS,
        num_stages=1,
        wide_loads=BLOCK * heads.size * 4 // (WARPS * 32 * 16),
    )


def variants() -> list[Variant]:
    """What is compiled ahead of time."""
    return [combine_variant(heads) for heads in SIZES]
