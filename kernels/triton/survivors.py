"""Where the survivors of top-k and top-p end, among a row's gathered tokens.

In the order of their distance from the likeliest each of the two keeps a prefix, and of the tokens
that tie at its end those with the lowest ids. The end is found by a search over the bits of the
distance, as an int32 its *key*: no token is moved.
"""

from __future__ import annotations

import triton
import triton.language as tl

from branchline.kernels.triton.weights import goal_of, mass

_LAST_KEY = tl.constexpr(0x42440000)  # the bits of 49.0, the farthest level
_NO_KEY = tl.constexpr(0x7FFFFFFF)  # after every distance
_PIVOTS = tl.constexpr(8)  # one pass of the search leaves an eighth


@triton.jit
def load_chunk(distances, start, count, CHUNK: tl.constexpr):
    """The keys, float32 weights and masses of some of a row's gathered tokens."""
    index = start + tl.arange(0, CHUNK)
    t = tl.load(distances + index, mask=index < count, other=0.0)
    weight = tl.where(index < count, tl.exp2(-t), 0.0)
    key = tl.where(index < count, t.to(tl.int32, bitcast=True), _NO_KEY)
    return key, weight, mass(weight)


@triton.jit
def _closest(distances, count, low, high, CHUNK: tl.constexpr):
    """The first and the last key in [low, high] that a token has; some has."""
    first = tl.full([], _NO_KEY, tl.int32)
    last = tl.full([], -1, tl.int32)
    for start in range(0, count, CHUNK):
        key, _, _ = load_chunk(distances, start, count, CHUNK)
        first = tl.minimum(first, tl.min(tl.where(key >= low, key, _NO_KEY), 0))
        last = tl.maximum(last, tl.max(tl.where(key <= high, key, -1), 0))
    return first, last


@triton.jit
def find_end(distances, count, goal, BY_MASS: tl.constexpr, CHUNK: tl.constexpr):
    """The smallest key up to which tokens, or their masses, sum to the goal; the sum before it.

    The sum of all reaches the goal. What is searched always begins and ends with a token's key, so
    a few tokens take a few passes.
    """
    low, high = _closest(distances, count, 0, _LAST_KEY, CHUNK)
    below = tl.full([], 0, tl.int64)
    while low < high:
        step = (high - low) // _PIVOTS + 1
        pivot = low + step * (tl.arange(0, _PIVOTS) + 1) - 1
        reached = tl.zeros([_PIVOTS], tl.int64)
        for start in range(0, count, CHUNK):
            key, _, weights = load_chunk(distances, start, count, CHUNK)
            value = weights if BY_MASS else tl.full([CHUNK], 1, tl.int64)
            reached += tl.sum(tl.where(key[:, None] <= pivot[None, :], value[:, None], 0), 0)
        short = reached < goal
        below = tl.maximum(below, tl.max(tl.where(short, reached, 0), 0))
        low += step * tl.sum(short.to(tl.int32), 0)
        high = tl.minimum(high, low + step - 1)
        low, high = _closest(distances, count, low, high, CHUNK)
    return low, below


@triton.jit
def _mass_of_top_k(distances, count, last, room, CHUNK: tl.constexpr):
    """The mass of the tokens before the key `last`, and of `room` of those that have it."""
    total = tl.full([], 0, tl.int64)
    unit = tl.full([], 0, tl.int64)
    for start in range(0, count, CHUNK):
        key, _, weights = load_chunk(distances, start, count, CHUNK)
        total += tl.sum(tl.where(key < last, weights, 0), 0)
        unit = tl.maximum(unit, tl.max(tl.where(key == last, weights, 0), 0))
    return total + room * unit


@triton.jit
def find_survivors(distances, count, total, top_k, top_p, CHUNK: tl.constexpr):
    """The key of the last survivor; of the tokens that tie with it, those that find room survive.

    Each needs a `unit` of it: an integer division would be a call. Top-p takes its share of what
    top-k leaves, or of the row's `total`.
    """
    last = tl.full([], _LAST_KEY, tl.int32)
    room = count.to(tl.int64)
    unit = tl.full([], 1, tl.int64)
    if top_k > 0:
        if top_k < count:
            last, below = find_end(distances, count, top_k.to(tl.int64), False, CHUNK)  # noqa: FBT003
            room = top_k - below
        total = _mass_of_top_k(distances, count, last, room, CHUNK)
    if top_p < 1.0:
        goal = goal_of(total, top_p)
        last, below = find_end(distances, count, goal, True, CHUNK)  # noqa: FBT003
        room = goal - below
        unit = mass(tl.exp2(-last.to(tl.float32, bitcast=True)))
    return last, room, unit
