"""The random number of a draw: a pure function of (seed, position), the same as on the CPU.

Triton's Philox4x32-10 under the key `seed`, of the counter `position`; see
`branchline.runtime.sampling.philox`.
"""

from __future__ import annotations

import triton
import triton.language as tl

_ULP = tl.constexpr(2.0**-53)


@triton.jit
def uniform(seed, position):
    """A float64 in [0, 1) of 53 random bits, from two int64."""
    low = (position & 0xFFFFFFFF).to(tl.uint32)
    high = ((position >> 32) & 0xFFFFFFFF).to(tl.uint32)
    word0, word1, _, _ = tl.philox(seed, low, high, low * 0, low * 0)
    mantissa = ((word1.to(tl.uint64) << 32) | word0.to(tl.uint64)) >> 11
    return mantissa.to(tl.float64) * _ULP
