"""How one slot's sampling parameters lie on the device: a row of 32-bit words.

The host writes rows (`branchline.runtime.sampling.slot_rows`), every sampling kernel reads them.
"""

from __future__ import annotations

import triton
import triton.language as tl

# The words of a row. A float32 is one word, its bits; 64 bits are two words, the low one first.
FLAGS = tl.constexpr(0)
TOP_K = tl.constexpr(1)  # int32; 0 keeps all
SLOPE = tl.constexpr(2)  # float32: log2(e) / temperature, at most STEEPEST
MIN_P = tl.constexpr(3)  # float32; 0 keeps all
SEED = tl.constexpr(4)  # 64 bits
TOP_P = tl.constexpr(6)  # float64; 1 keeps all
REPETITION = tl.constexpr(8)  # float32
FREQUENCY = tl.constexpr(9)  # float32
PRESENCE = tl.constexpr(10)  # float32
STOPS_FROM = tl.constexpr(11)  # int32: the first position at which a stop id may be drawn
WORDS = tl.constexpr(12)

# The bits of FLAGS.
GREEDY = tl.constexpr(1)
BIASED = tl.constexpr(2)
PENALIZED = tl.constexpr(4)  # the slot's marks count its output

STEEPEST = 2.0**60  # a slope at which logits that differ at all are infinitely far apart


@triton.jit
def load_word(table, slot, word):
    """One int32 of a slot's row."""
    return tl.load(table + slot * WORDS + word)


@triton.jit
def load_float(table, slot, word):
    """One float32 of a slot's row."""
    return load_word(table, slot, word).to(tl.float32, bitcast=True)


@triton.jit
def load_pair(table, slot, word):
    """Two words of a slot's row as an int64."""
    low = load_word(table, slot, word).to(tl.int64) & 0xFFFFFFFF
    return (load_word(table, slot, word + 1).to(tl.int64) << 32) | low


@triton.jit
def load_flags(table, slot):
    """The flags of a slot; the padding slot −1 is greedy and nothing else."""
    flags = load_word(table, tl.maximum(slot, 0), FLAGS)
    return tl.where(slot >= 0, flags, GREEDY)


@triton.jit
def cuts(table, slot):
    """Whether top-k or top-p removes anything from the slot's distribution."""
    top_p = load_pair(table, slot, TOP_P).to(tl.float64, bitcast=True)
    return (load_word(table, slot, TOP_K) > 0) | (top_p < 1.0)
