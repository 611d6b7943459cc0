"""Random numbers as a pure function of (seed, position).

Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3"
(SC'11): a bijection of a 128-bit counter under a 64-bit key. There is no state to keep, so a
request that was retracted draws the same numbers again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    Words: TypeAlias = NDArray[np.uint64]  # each holds 32 bits, so that a product fits

_LOW = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)
_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_KEY_STEPS = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_ROUNDS = 10


def philox(
    counter: tuple[Words, Words, Words, Words], key: tuple[Words, Words]
) -> tuple[Words, ...]:
    """The four output words of each counter under its key; the arrays broadcast."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        p0 = c0 * _MULTIPLIERS[0]
        p1 = c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (p1 >> _32) ^ c1 ^ k0, p1 & _LOW, (p0 >> _32) ^ c3 ^ k1, p0 & _LOW
        k0, k1 = (k0 + _KEY_STEPS[0]) & _LOW, (k1 + _KEY_STEPS[1]) & _LOW
    return c0, c1, c2, c3


def uniform(seed: ArrayLike, position: ArrayLike) -> NDArray[np.float64]:
    """A float64 in [0, 1) for each pair: the seed is the key, the position the counter.

    Args:
        seed: one or more integers in [0, 2**64).
        position: one or more integers in [0, 2**64); broadcasts with `seed`.
    """
    seeds = np.asarray(seed, dtype=np.uint64)
    positions = np.asarray(position, dtype=np.uint64)
    zero = np.zeros_like(positions)
    counter = (positions & _LOW, positions >> _32, zero, zero)
    low, high, _, _ = philox(counter, (seeds & _LOW, seeds >> _32))
    mantissa = ((high << _32) | low) >> np.uint64(11)  # 53 bits: every value is exact
    return np.asarray(mantissa * 2.0**-53, dtype=np.float64)
