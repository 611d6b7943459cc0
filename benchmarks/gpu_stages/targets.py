"""What was computed before the first run: targets for Llama 3 8B in bfloat16 on one H200.

From bytes and operations at 82 % of the copy bandwidth for weights, 85 % for K and V, 620 TFLOP/s,
and 0.35 ms of gaps in a step; the floors are at 100 % of 4.3 TB/s or 790 TFLOP/s, without gaps.
"""

from __future__ import annotations

COPY_BANDWIDTH = 4.3e12  # bytes a second, read and written
MATRIX_RATE = 790e12  # of 8192³ in bfloat16, on random numbers

# (batch, context) -> ms of a decode step: floor, target
DECODE = {
    (1, 1024): (3.52, 4.65),
    (8, 1024): (3.76, 4.93),
    (32, 1024): (4.57, 5.91),
    (64, 1024): (5.64, 7.21),
    (256, 1024): (13.46, 16.96),
    (1, 2048): (3.56, 4.68),
    (8, 2048): (4.01, 5.23),
    (32, 2048): (5.56, 7.08),
    (64, 2048): (7.64, 9.56),
    (256, 2048): (21.45, 26.4),
}
# tokens -> ms of a prefill: floor, target
PREFILL = {2048: (37.6, 46.0), 8192: (167.0, 224.0), 32768: (935.0, 1497.0)}

PREFIX_HIT_WALL = 6.0  # ms from request to token, 5,920 cached and 17 new
PREFIX_HIT_DEVICE = 5.0  # ms of that on the device
SELECT_TWO_PASSES = 8.43  # ms: the floor where the prompt and its choices are two passes

# (batch, shared, own) -> how much faster a step is when what is shared is read once. The first is
# the goal; the others are floors at which unshared reads come from the L2 cache where they fit.
SHARED = {
    (64, 5920, 64): 2.5,
    (32, 5920, 64): 1.99,
    (64, 2048, 256): 1.61,
    (8, 5920, 64): 1.22,
}
# Of the copy bandwidth, for decode attention: from 64K positions in the batch, and from 16K.
ATTENTION_LARGE, ATTENTION_SMALL = 85.0, 70.0
EXTEND_RATE = 350.0  # TFLOP/s of causal attention over long prompts
LINEAR = 85.0  # % of the copy bandwidth, for up to 32 tokens

# Of ‖found − wanted‖ / ‖wanted‖, by the bytes of an element's type and whether it is bfloat16.
TOLERANCE = {"float32": 1e-6, "float16": 5e-4, "bfloat16": 5e-3}
INTERPRETED_BFLOAT16 = 1e-2  # the interpreter cuts off where a device rounds
