"""The draw: one token of each row of scores, greedy or by the inverse of the cumulative weights.

As on the CPU, the sum runs over the survivors in the order of their ids and one uniform number of
(seed, position) decides, so both devices draw the same tokens, roundings at the boundaries aside.
Greedy rows take two launches (`peaks`, `choose`), others three, those with top-k or top-p four;
the launches depend on nothing that a device knows, so a graph can hold them.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from branchline.kernels.triton.filters import gather, weigh
from branchline.kernels.triton.launch import launch
from branchline.kernels.triton.philox import uniform
from branchline.kernels.triton.sampler_table import (
    GREEDY,
    MIN_P,
    PENALIZED,
    SEED,
    SLOPE,
    TOP_K,
    TOP_P,
    cuts,
    load_flags,
    load_float,
    load_pair,
    load_word,
)
from branchline.kernels.triton.survivors import find_survivors, load_chunk
from branchline.kernels.triton.variant import Variant
from branchline.kernels.triton.weights import (
    BLOCK,
    MOST_BLOCKS,
    distance,
    is_drawn,
    load_scores,
    mass,
    row_peak,
    share,
)

if TYPE_CHECKING:
    from torch import Tensor

    from branchline.kernels.triton.workspace import Workspace

_CHUNK = 1024  # gathered tokens at a time
_NOTHING = tl.constexpr(2**31 - 1)


@triton.jit
def peaks_kernel(scores, peaks, peak_ids, vocab, stride, BLOCK: tl.constexpr, BLOCKS: tl.constexpr):
    """Program (r, b) finds the highest score of block b of row r, and its first token."""
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    column = block * BLOCK + tl.arange(0, BLOCK)
    x = load_scores(scores + row * stride, column, vocab)
    highest = tl.max(x, 0)
    tl.store(peaks + row * BLOCKS + block, highest)
    tl.store(peak_ids + row * BLOCKS + block, tl.min(tl.where(x == highest, column, _NOTHING), 0))


@triton.jit
def _target(total, u):
    """The outcome of a draw, in [0, total)."""
    return tl.minimum(share(total, u), total - 1)


@triton.jit
def _draw_any(scores, chances, highest, slope, min_p, u, vocab, blocks, BLOCK: tl.constexpr,
              BLOCKS: tl.constexpr):  # fmt: skip
    """A token of the whole row, without those that min-p removes: its block, then its column."""
    every = tl.arange(0, BLOCKS)
    chance = tl.load(chances + every, mask=every < blocks, other=0)
    target = _target(tl.sum(chance, 0), u)
    block = tl.sum((tl.cumsum(chance, 0) <= target).to(tl.int32), 0)
    target -= tl.sum(tl.where(every < block, chance, 0), 0)
    x = load_scores(scores, block * BLOCK + tl.arange(0, BLOCK), vocab)
    weight = tl.exp2(-distance(x, highest, slope))
    weights = tl.where(weight >= min_p, mass(weight), 0)
    return block * BLOCK + tl.sum((tl.cumsum(weights, 0) <= target).to(tl.int32), 0)


@triton.jit
def _surviving(key, weight, weights, last, room, unit, min_p):
    """The masses of a chunk's tokens, 0 for those removed; and the room that is left after them."""
    taken = tl.where(key == last, unit, 0)
    alive = (key < last) | ((key == last) & (tl.cumsum(taken, 0) - unit < room))
    return tl.where(alive & (weight >= min_p), weights, 0), room - tl.sum(taken, 0)


@triton.jit
def _draw_gathered(
    distances, ids, count, whole, top_k, top_p, min_p, u, CHUNK: tl.constexpr
):  # fmt: skip
    """A token of those that survive top-k, top-p and min-p."""
    last, room, unit = find_survivors(distances, count, whole, top_k, top_p, CHUNK)
    total = tl.full([], 0, tl.int64)
    left = room
    for start in range(0, count, CHUNK):
        key, weight, weights = load_chunk(distances, start, count, CHUNK)
        masses, left = _surviving(key, weight, weights, last, left, unit, min_p)
        total += tl.sum(masses, 0)
    target = _target(total, u)
    index = tl.full([], 0, tl.int32)  # how many tokens are wholly below the target
    left = room
    below = tl.full([], 0, tl.int64)
    for start in range(0, count, CHUNK):
        key, weight, weights = load_chunk(distances, start, count, CHUNK)
        masses, left = _surviving(key, weight, weights, last, left, unit, min_p)
        index += tl.sum((below + tl.cumsum(masses, 0) <= target).to(tl.int32), 0)
        below += tl.sum(masses, 0)
    return tl.load(ids + index)


@triton.jit
def choose_kernel(
    scores, slots, positions, table, peaks, peak_ids, chances, found, totals,
    distances, gathered, marks, last_token, out, vocab, stride,
    DRAWS: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Program r chooses the token of row r, and notes it for its slot."""
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row)
    flags = load_flags(table, slot)
    blocks = tl.cdiv(vocab, BLOCK)
    highest = row_peak(peaks + row * BLOCKS, blocks, BLOCKS)
    block = tl.arange(0, BLOCKS)
    peak = tl.load(peaks + row * BLOCKS + block, mask=block < blocks, other=float("-inf"))
    first = tl.load(peak_ids + row * BLOCKS + block, mask=block < blocks, other=_NOTHING)
    token = tl.min(tl.where(peak == highest, first, _NOTHING), 0)
    if DRAWS:  # noqa: SIM102 - the constant decides what is compiled
        if is_drawn(flags, highest, GREEDY):
            u = uniform(load_pair(table, slot, SEED), tl.load(positions + row))
            min_p = load_float(table, slot, MIN_P)
            if cuts(table, slot):
                top_p = load_pair(table, slot, TOP_P).to(tl.float64, bitcast=True)
                start = row * vocab
                token = _draw_gathered(
                    distances + start, gathered + start, tl.load(found + row),
                    tl.load(totals + row), load_word(table, slot, TOP_K), top_p, min_p, u, CHUNK,
                )  # fmt: skip
            else:
                slope = load_float(table, slot, SLOPE)
                token = _draw_any(
                    scores + row * stride, chances + row * BLOCKS, highest, slope, min_p, u,
                    vocab, blocks, BLOCK, BLOCKS,
                )  # fmt: skip
    if slot >= 0:
        tl.store(last_token + slot, token.to(tl.int64))
        if (flags & PENALIZED) != 0:
            mark = marks + slot * vocab + token
            tl.store(mark, tl.load(mark) + 1)
    else:
        token = token * 0
    tl.store(out + row, token.to(tl.int64))


@lru_cache
def peaks_variant(aligned: bool) -> Variant:
    """The highest score of each block."""
    integers = ("vocab", "stride")
    return Variant(
        name="peaks" if aligned else "peaks, odd vocabulary",
        kernel=peaks_kernel,
        types={"scores": "*fp32", "peaks": "*fp32", "peak_ids": "*i32"}
        | dict.fromkeys(integers, "i32"),
        constants={"BLOCK": BLOCK, "BLOCKS": MOST_BLOCKS},
        aligned=frozenset(integers if aligned else ()),
        num_warps=8,
        num_stages=1,
        wide_loads=4 if aligned else 0,
    )


@lru_cache
def choose_variant(draws: bool) -> Variant:
    """The choice of a token; `draws`: some row may not be greedy."""
    types = {"scores": "*fp32", "slots": "*i64", "positions": "*i64", "table": "*i32"}
    types |= {"peaks": "*fp32", "peak_ids": "*i32", "chances": "*i64", "found": "*i32"}
    types |= {"totals": "*i64", "distances": "*fp32", "gathered": "*i32", "marks": "*i32"}
    return Variant(
        name="choose" if draws else "choose, greedy",
        kernel=choose_kernel,
        types=types | {"last_token": "*i64", "out": "*i64", "vocab": "i32", "stride": "i32"},
        constants={"DRAWS": draws, "BLOCK": BLOCK, "BLOCKS": MOST_BLOCKS, "CHUNK": _CHUNK},
        aligned=frozenset(),
        num_warps=8 if draws else 4,
        num_stages=1,
    )


def variants() -> list[Variant]:
    """What is compiled ahead of time."""
    return [of(flag) for of in (peaks_variant, choose_variant) for flag in (True, False)]


def sample_scores(
    scores: Tensor,
    slots: Tensor,
    positions: Tensor,
    table: Tensor,
    marks: Tensor,
    last_token: Tensor,
    work: Workspace,
    *,
    draws: bool,
    cut: bool,
) -> Tensor:
    """The token of each row, int64 [R]; a padding row has 0. Notes it in `last_token` and `marks`.

    A NaN counts as impossible. A row with no possible token gets id 0, one with infinite scores the
    first of those.

    Args:
        scores: float32 [R, V], adjusted and masked.
        slots: int64 [R], different ones; −1 is padding.
        positions: int64 [R], of the token to draw.
        table: int32 [slots, WORDS].
        marks: int32 [slots, V]; counts what is drawn where the row has penalties.
        last_token: int64 [slots], written.
        work: for at least R rows.
        draws: whether a row may not be greedy.
        cut: whether such a row may have top-k or top-p.
    """
    rows, vocab = scores.shape
    assert scores.stride(1) == 1
    assert rows <= len(work.found)
    ids = torch.empty(rows, dtype=torch.int64, device=scores.device)
    launch(
        peaks_variant(vocab % 16 == 0 and scores.stride(0) % 16 == 0),
        (rows, triton.cdiv(vocab, BLOCK)),
        scores=scores,
        peaks=work.peaks,
        peak_ids=work.peak_ids,
        vocab=vocab,
        stride=scores.stride(0),
    )
    if draws:
        weigh(scores, slots, table, work)
    if draws and cut:
        gather(scores, slots, table, work)
    launch(
        choose_variant(draws),
        (rows,),
        scores=scores,
        slots=slots,
        positions=positions,
        table=table,
        peaks=work.peaks,
        peak_ids=work.peak_ids,
        chances=work.chances,
        found=work.found,
        totals=work.totals,
        distances=work.distances,
        gathered=work.ids,
        marks=marks,
        last_token=last_token,
        out=ids,
        vocab=vocab,
        stride=scores.stride(0),
    )
    return ids
