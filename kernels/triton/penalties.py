"""What changes single logits before the draw: bias, penalties, the mask of stop ids.

A slot has one int32 *mark* for each token: how often the output has it, and two bits, whether the
prompt has it and whether it is a stop id. Sampling counts what it draws, so a step needs nothing
from the host.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import triton
import triton.language as tl

from branchline.kernels.triton.launch import launch
from branchline.kernels.triton.sampler_table import (
    BIASED,
    FREQUENCY,
    PENALIZED,
    PRESENCE,
    REPETITION,
    STOPS_FROM,
    load_flags,
    load_float,
    load_word,
)
from branchline.kernels.triton.variant import Variant

if TYPE_CHECKING:
    from torch import Tensor

COUNT = tl.constexpr(2**30 - 1)  # the bits of a mark that count the output
IN_PROMPT = tl.constexpr(2**30)
IS_STOP = tl.constexpr(-(2**31))
_BLOCK = 4096  # tokens of a program


@triton.jit
def penalise(x, marks, repetition, frequency, presence):
    """Logits x under the penalties; repetition first, whatever the sign of the logit."""
    count = marks & COUNT
    repeated = (marks & (COUNT | IN_PROMPT)) != 0
    x = tl.where(repeated, tl.where(x > 0, x / repetition, x * repetition), x)
    return tl.where(count > 0, x - (frequency * count.to(tl.float32) + presence), x)


@triton.jit
def adjust_kernel(
    logits, scores, slots, positions, table, marks, bias, vocab, stride, scores_stride,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Program (r, b) writes block b of row r of the scores."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < vocab
    x = tl.load(logits + row * stride + column, mask=inside, other=0.0)
    slot = tl.load(slots + row).to(tl.int64)
    flags = load_flags(table, slot)
    at = tl.maximum(slot, 0)
    if (flags & BIASED) != 0:
        x += tl.load(bias + at * vocab + column, mask=inside, other=0.0)
    early = (slot >= 0) & (tl.load(positions + row) < load_word(table, at, STOPS_FROM))
    if ((flags & PENALIZED) != 0) | early:
        mark = tl.load(marks + at * vocab + column, mask=inside, other=0)
        if (flags & PENALIZED) != 0:
            repetition = load_float(table, at, REPETITION)
            frequency = load_float(table, at, FREQUENCY)
            x = penalise(x, mark, repetition, frequency, load_float(table, at, PRESENCE))
        if early:
            x = tl.where((mark & IS_STOP) != 0, float("-inf"), x)
    tl.store(scores + row * scores_stride + column, x, mask=inside)


@lru_cache
def _variant(aligned: bool) -> Variant:
    integers = ("vocab", "stride", "scores_stride")
    return Variant(
        name="adjust" if aligned else "adjust, odd vocabulary",
        kernel=adjust_kernel,
        types=dict.fromkeys(("logits", "scores", "bias"), "*fp32")
        | {"slots": "*i64", "positions": "*i64", "table": "*i32", "marks": "*i32"}
        | dict.fromkeys(integers, "i32"),
        constants={"BLOCK": _BLOCK},
        aligned=frozenset(integers if aligned else ()),
        num_warps=8,
        num_stages=1,
        wide_loads=12 if aligned else 0,
    )


def variants() -> list[Variant]:
    """What is compiled ahead of time."""
    return [_variant(aligned) for aligned in (True, False)]


def adjust(
    logits: Tensor,
    scores: Tensor,
    slots: Tensor,
    positions: Tensor,
    table: Tensor,
    marks: Tensor,
    bias: Tensor,
) -> None:
    """Write the scores of each row: its logits with bias, penalties and the mask of stop ids.

    Args:
        logits: float32 [R, V].
        scores: float32 [R, V], written.
        slots: int64 [R]; −1 is padding, its logits are copied.
        positions: int64 [R], of the token to draw.
        table: int32 [slots, WORDS].
        marks: int32 [slots, V].
        bias: float32 [slots, V].
    """
    rows, vocab = logits.shape
    assert logits.stride(1) == scores.stride(1) == 1
    assert marks.is_contiguous()
    assert bias.is_contiguous()
    strides = logits.stride(0), scores.stride(0)
    launch(
        _variant(all(size % 16 == 0 for size in (vocab, *strides))),
        (rows, triton.cdiv(vocab, _BLOCK)),
        logits=logits,
        scores=scores,
        slots=slots,
        positions=positions,
        table=table,
        marks=marks,
        bias=bias,
        vocab=vocab,
        stride=strides[0],
        scores_stride=strides[1],
    )
