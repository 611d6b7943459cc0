"""Top-k and top-p without a sort: the tokens that can survive, gathered.

`weigh` counts, in each block of the vocabulary, the tokens within a few fixed distances of the
likeliest. From that `gather` knows for each row a distance within which all survivors are, and
copies those tokens one after the other, in the order of their ids: of 128,000 usually some hundred.
The draw then finds exactly where they end (`branchline.kernels.triton.survivors`).
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import triton
import triton.language as tl

from branchline.kernels.triton.launch import launch
from branchline.kernels.triton.sampler_table import (
    GREEDY,
    MIN_P,
    SLOPE,
    TOP_K,
    TOP_P,
    cuts,
    load_flags,
    load_float,
    load_pair,
    load_word,
)
from branchline.kernels.triton.variant import Variant
from branchline.kernels.triton.weights import (
    BLOCK,
    LEVELS,
    MOST_BLOCKS,
    distance,
    goal_of,
    is_drawn,
    load_scores,
    mass,
    row_peak,
)

if TYPE_CHECKING:
    from torch import Tensor

    from branchline.kernels.triton.workspace import Workspace

_MOST_LEVELS = tl.constexpr(8)  # a power of 2


@triton.jit
def level_distance(level):
    """How far from the likeliest a level reaches."""
    return ((level + 1) * (level + 1)).to(tl.float32)


@triton.jit
def weigh_kernel(
    scores, slots, table, peaks, counts, masses, chances, vocab, stride,
    BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """Program (r, b) weighs block b of row r: for each level, and what min-p alone would keep."""
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    slot = tl.load(slots + row)
    highest = row_peak(peaks + row * BLOCKS, tl.num_programs(1), BLOCKS)
    if is_drawn(load_flags(table, slot), highest, GREEDY):
        x = load_scores(scores + row * stride, block * BLOCK + tl.arange(0, BLOCK), vocab)
        t = distance(x, highest, load_float(table, slot, SLOPE))
        weight = tl.exp2(-t)
        weights = mass(weight)
        kept = tl.where(weight >= load_float(table, slot, MIN_P), weights, 0)
        tl.store(chances + row * BLOCKS + block, tl.sum(kept, 0))
        if cuts(table, slot):
            for level in tl.static_range(LEVELS):
                within = t <= (level + 1) * (level + 1)
                at = (row * LEVELS + level) * BLOCKS + block
                tl.store(counts + at, tl.sum(within.to(tl.int32), 0))
                tl.store(masses + at, tl.sum(tl.where(within, weights, 0), 0))


@triton.jit
def _find_level(counts, masses, blocks, top_k, top_p, BLOCKS: tl.constexpr):
    """The first level that holds all survivors: top-k's, else top-p's; and the mass of the row."""
    level = tl.arange(0, _MOST_LEVELS)
    block = tl.arange(0, BLOCKS)
    at = level[:, None] * BLOCKS + block[None, :]
    inside = (level < LEVELS)[:, None] & (block < blocks)[None, :]
    by_count = tl.sum(tl.load(counts + at, mask=inside, other=0), 1)
    by_mass = tl.sum(tl.load(masses + at, mask=inside, other=0), 1)
    total = tl.max(by_mass, 0)
    short = tl.where(top_k > 0, by_count < top_k, by_mass < goal_of(total, top_p))
    return tl.sum((short & (level < LEVELS - 1)).to(tl.int32), 0), total


@triton.jit
def gather_kernel(
    scores, slots, table, peaks, counts, masses, found, totals, distances, ids, vocab,
    stride,
    BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """Program (r, b) copies from block b of row r the tokens that can survive.

    The first of a row notes how many there are in all, and the mass of the row.
    """
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    blocks = tl.num_programs(1)
    slot = tl.load(slots + row)
    highest = row_peak(peaks + row * BLOCKS, blocks, BLOCKS)
    if is_drawn(load_flags(table, slot), highest, GREEDY) & cuts(table, tl.maximum(slot, 0)):
        top_p = load_pair(table, slot, TOP_P).to(tl.float64, bitcast=True)
        first = row * LEVELS * BLOCKS
        top_k = load_word(table, slot, TOP_K)
        level, total = _find_level(counts + first, masses + first, blocks, top_k, top_p, BLOCKS)
        every = tl.arange(0, BLOCKS)
        of_block = tl.load(counts + first + level * BLOCKS + every, mask=every < blocks, other=0)
        before = tl.sum(tl.where(every < block, of_block, 0), 0)
        if block == 0:
            tl.store(found + row, tl.sum(of_block, 0))
            tl.store(totals + row, total)
        if tl.sum(tl.where(every == block, of_block, 0), 0) > 0:
            column = block * BLOCK + tl.arange(0, BLOCK)
            x = load_scores(scores + row * stride, column, vocab)
            t = distance(x, highest, load_float(table, slot, SLOPE))
            within = t <= level_distance(level)
            at = row * vocab + before + tl.cumsum(within.to(tl.int32), 0) - 1
            tl.store(distances + at, t, mask=within)
            tl.store(ids + at, column, mask=within)


@lru_cache
def weigh_variant(aligned: bool) -> Variant:
    """The weighing of blocks."""
    return _variant(
        "weigh",
        weigh_kernel,
        {"counts": "*i32", "masses": "*i64", "chances": "*i64"},
        aligned=aligned,
    )


@lru_cache
def gather_variant(aligned: bool) -> Variant:
    """The copy of what can survive."""
    return _variant(
        "gather",
        gather_kernel,
        {"counts": "*i32", "masses": "*i64", "found": "*i32", "totals": "*i64"}
        | {"distances": "*fp32", "ids": "*i32"},
        aligned=aligned,
    )


def _variant(name: str, kernel: object, types: dict[str, str], *, aligned: bool) -> Variant:
    integers = ("vocab", "stride")
    return Variant(
        name=name if aligned else f"{name}, odd vocabulary",
        kernel=kernel,
        types={"scores": "*fp32", "slots": "*i64", "table": "*i32", "peaks": "*fp32"}
        | types
        | dict.fromkeys(integers, "i32"),
        constants={"BLOCK": BLOCK, "BLOCKS": MOST_BLOCKS},
        aligned=frozenset(integers if aligned else ()),
        num_warps=8,
        num_stages=1,
        wide_loads=4 if aligned else 0,
    )


def variants() -> list[Variant]:
    """What is compiled ahead of time."""
    return [of(aligned) for of in (weigh_variant, gather_variant) for aligned in (True, False)]


def weigh(scores: Tensor, slots: Tensor, table: Tensor, work: Workspace) -> None:
    """Fill `work.counts`, `work.masses` and `work.chances` of the rows that are drawn from.

    Args:
        scores: float32 [R, V].
        slots: int64 [R]; −1 is padding.
        table: int32 [slots, WORDS].
        work: its peaks are known.
    """
    rows, vocab = scores.shape
    launch(
        weigh_variant(vocab % 16 == 0 and scores.stride(0) % 16 == 0),
        (rows, triton.cdiv(vocab, BLOCK)),
        scores=scores,
        slots=slots,
        table=table,
        peaks=work.peaks,
        counts=work.counts,
        masses=work.masses,
        chances=work.chances,
        vocab=vocab,
        stride=scores.stride(0),
    )


def gather(scores: Tensor, slots: Tensor, table: Tensor, work: Workspace) -> None:
    """Fill `work.found`, `totals`, `distances` and `ids` of the rows with top-k or top-p."""
    rows, vocab = scores.shape
    launch(
        gather_variant(vocab % 16 == 0 and scores.stride(0) % 16 == 0),
        (rows, triton.cdiv(vocab, BLOCK)),
        scores=scores,
        slots=slots,
        table=table,
        peaks=work.peaks,
        counts=work.counts,
        masses=work.masses,
        found=work.found,
        totals=work.totals,
        distances=work.distances,
        ids=work.ids,
        vocab=vocab,
        stride=scores.stride(0),
    )
