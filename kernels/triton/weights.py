"""A token's weight as an integer, so that a sum is exact in any order and never decreases.

A token that is t = (highest − logit) · log2(e) / temperature below the likeliest weighs 2^(43 − t),
cut to an integer: the likeliest weighs 2^43, a vocabulary at most 2^62, and what is less likely by
a factor of 2^43 is never drawn. Where a float32 prefix sum may go down, and one of another order of
additions draws another token, these are the same however the work is divided.

Filters need an order that top-k, top-p and min-p all follow: that of t, whose bits as an int32 are
in the same order because it is not negative. Tokens whose t is equal are a tie.
"""

from __future__ import annotations

import triton
import triton.language as tl

BLOCK = 4096  # tokens of a program
MOST_BLOCKS = 128
MOST_TOKENS = BLOCK * MOST_BLOCKS  # the largest vocabulary
LEVELS = tl.constexpr(7)  # at distances 1, 4, 9 … 49: a token beyond the last one weighs nothing

_WHOLE = tl.constexpr(2.0**43)
_FARTHEST = tl.constexpr(2.0**60)  # so that times the steepest slope is still finite


@triton.jit
def load_scores(scores, column, vocab):
    """Float32 at the columns of a row; a NaN counts as impossible, as do columns past the end."""
    x = tl.load(scores + column, mask=column < vocab, other=float("-inf"))
    return tl.where(x == x, x, float("-inf"))  # only a NaN differs from itself


@triton.jit
def distance(x, highest, slope):
    """How many powers of 2 less likely than the likeliest: float32, not negative."""
    return tl.minimum(highest - x, _FARTHEST) * slope


@triton.jit
def mass(weight):
    """A float32 weight in [0, 1] as an int64."""
    return (weight * _WHOLE).to(tl.int64)


@triton.jit
def share(total, part):
    """The integer up to which a `part` (float64, at most 1) of a total reaches, cut."""
    return (total.to(tl.float64) * part).to(tl.int64)


@triton.jit
def goal_of(total, top_p):
    """The mass that top-p keeps at least, in [1, total]."""
    goal = share(total, top_p)
    goal += (goal.to(tl.float64) < total.to(tl.float64) * top_p).to(tl.int64)
    return tl.maximum(tl.minimum(goal, total), 1)


@triton.jit
def row_peak(peaks, blocks, MOST: tl.constexpr):
    """The highest score of a row, from those of its blocks."""
    block = tl.arange(0, MOST)
    return tl.max(tl.load(peaks + block, mask=block < blocks, other=float("-inf")), 0)


@triton.jit
def is_drawn(flags, highest, GREEDY: tl.constexpr):
    """Whether a row needs a random number: infinite scores do not leave a choice."""
    return ((flags & GREEDY) == 0) & (tl.abs(highest) < float("inf"))
