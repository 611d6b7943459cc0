"""One draw from each row's distribution: weights, and the inverse of their cumulative sum.

The sum runs over the survivors *in the order of their ids*. The order of likelihood would need a
sort, and two tokens whose logits trade places in the last bit would trade their draws; in the order
of ids a small change of the logits moves each boundary only a little.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

# A row is summed in blocks and only the sums cumulate in float64; then the block that holds the
# outcome is summed token by token. Float64 over a whole vocabulary would take several times as
# long, and a sum of 128 is about as exact in float32 as its terms are.
_BLOCK = 128
_STEEPEST = 1e38  # finite in float32, so that times 0 is still 0


def weights_of(logits: Tensor, highest: Tensor, temperature: Tensor) -> Tensor:
    """`exp((logit − highest) / temperature)`, float32 [R, V]: the likeliest token weighs exactly 1.

    Args:
        logits: float32 [R, V], no NaN.
        highest: float32 [R], the finite maximum of each row.
        temperature: float64 [R], above 0; under 1.5e-38 counts as that.
    """
    # exp2, because torch's exp takes twenty times as long where the result underflows to 0.
    slope = (math.log2(math.e) / temperature).clamp_max(_STEEPEST)
    return logits.sub(highest[:, None]).mul_(slope.to(torch.float32)[:, None]).exp2_()


def draw(weights: Tensor, uniforms: Tensor) -> Tensor:
    """The column where each row's cumulative weight passes the share `uniforms` of its total.

    A column of weight 0 is never drawn, whatever is lost to rounding.

    Args:
        weights: float32 [R, C], none negative, some positive in each row.
        uniforms: float64 [R] in [0, 1].

    Returns:
        int64 [R].
    """
    blocks = _in_blocks(weights)
    by_block = _cumulate_blocks(blocks)
    target = uniforms[:, None] * by_block[:, -1:]
    block = _first_above(by_block, target)  # [R, 1]
    before = functional.pad(by_block, (1, 0)).gather(1, block)  # at most the target
    inside = blocks[torch.arange(len(blocks)), block[:, 0]].cumsum(-1, dtype=torch.float64)
    column = _first_above(inside, target - before)
    return (block * _BLOCK + column)[:, 0]


def total(weights: Tensor) -> Tensor:
    """The sum of each row, float64 [R], bit for bit the same however many rows there are.

    A plain `sum` splits a row between the threads when it is alone.
    """
    return _cumulate_blocks(_in_blocks(weights))[:, -1]


def padded(rows: Tensor, multiple: int, value: float) -> Tensor:
    """The rows ([R, C]) extended to a whole multiple of columns; no copy if they are one."""
    missing = -rows.shape[-1] % multiple
    return functional.pad(rows, (0, missing), value=value) if missing else rows


def _in_blocks(weights: Tensor) -> Tensor:
    return padded(weights, _BLOCK, 0.0).view(len(weights), -1, _BLOCK)


def _cumulate_blocks(blocks: Tensor) -> Tensor:
    """The sum of each block and all before it, float64 [R, blocks]."""
    return blocks.sum(-1).cumsum(-1, dtype=torch.float64)


def _first_above(cumulative: Tensor, target: Tensor) -> Tensor:
    """The first column above the target; if rounding left none, the last that adds anything."""
    found = torch.searchsorted(cumulative, target, right=True)
    last = torch.searchsorted(cumulative, cumulative[:, -1:].contiguous())
    return torch.minimum(found, last)
