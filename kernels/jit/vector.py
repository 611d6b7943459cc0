"""What Numba's Python has no words for: raw memory, bits, numbers that are handed out.

Memory is named by its address, an int64; sizes count elements.
"""

from __future__ import annotations

from typing import Any

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba import carray, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

FEATURES: dict[str, bool] = dict(llvm.get_host_cpu_features())
# The float32 of a vector register: AVX-512, AVX2, or the 128 bits that every other processor has.
LANES = 16 if FEATURES.get("avx512f") else 8 if FEATURES.get("avx2") else 4

# Nothing here says that there are no infinities and no NaN: there may be. (What divides needs
# Numba's `error_model="numpy"` too: a division that could raise is not made vectors.)
FAST = {"contract", "reassoc", "arcp", "nsz", "afn"}

WORD = ir.IntType(64)
_FLOATS = ir.VectorType(ir.FloatType(), LANES)


def _pointer_to(kind: Any) -> Any:
    """The intrinsic that makes an address a pointer to a type of Numba's."""

    @intrinsic
    def pointer(_typing: Any, _address: Any) -> Any:
        def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(kind).as_pointer())

        return types.CPointer(kind)(types.int64), generate

    return pointer


_f32_pointer = _pointer_to(types.float32)
_i32_pointer = _pointer_to(types.int32)
_i64_pointer = _pointer_to(types.int64)
_u16_pointer = _pointer_to(types.uint16)
_u8_pointer = _pointer_to(types.uint8)


@njit(inline="always")
def floats(address, count):
    """The float32 array [count] at an address."""
    return carray(_f32_pointer(address), count)


@njit(inline="always")
def ints(address, count):
    """The int32 array [count] at an address."""
    return carray(_i32_pointer(address), count)


@njit(inline="always")
def words(address, count):
    """The int64 array [count] at an address."""
    return carray(_i64_pointer(address), count)


@njit(inline="always")
def halves(address, count):
    """The uint16 array [count] at an address: the bits of bfloat16."""
    return carray(_u16_pointer(address), count)


@njit(inline="always")
def octets(address, count):
    """The uint8 array [count] at an address."""
    return carray(_u8_pointer(address), count)


@intrinsic
def claim(_typing: Any, _address: Any) -> Any:
    """The int64 at an address, which is one more afterwards: no two threads get the same."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        counter = builder.inttoptr(arguments[0], WORD.as_pointer())
        return builder.atomic_rmw("add", counter, WORD(1), "monotonic")

    return types.int64(types.int64), generate


@intrinsic
def call(_typing: Any, _code: Any, _argument: Any) -> Any:
    """Call the compiled function at an address with an int64."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [WORD])
        builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), [arguments[1]])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


# Waits until all threads of the team are here; from the OpenMP that torch has loaded.
barrier = types.ExternalFunction("GOMP_barrier", types.void())


@intrinsic
def copy_vector(_typing: Any, _source: Any, _to: Any) -> Any:
    """Copy LANES float32 from one address to another."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        kind = ir.VectorType(ir.FloatType(), LANES).as_pointer()
        source, to = (builder.inttoptr(address, kind) for address in arguments)
        builder.store(builder.load(source, align=4), to, align=4)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def transpose(_t: Any, _rows: Any, _byte: Any, _to: Any, _stride: Any) -> Any:
    """Transpose a square of LANES float32, whose rows lie anywhere.

    Its arguments: the address of the rows' addresses, the byte in each row where the square begins,
    the address of the transposed square and the bytes from row to row of it.
    """

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        addresses, byte, to, stride = arguments
        rows = []
        for row in range(LANES):
            at = builder.inttoptr(builder.add(addresses, WORD(8 * row)), WORD.as_pointer())
            place = builder.add(builder.load(at), byte)
            rows.append(builder.load(builder.inttoptr(place, _FLOATS.as_pointer()), align=4))
        half = LANES // 2
        low = [lane // 2 + lane % 2 * LANES for lane in range(LANES)]
        masks = [
            ir.Constant(ir.VectorType(ir.IntType(32), LANES), [lane + first for lane in low])
            for first in (0, half)
        ]
        for _ in range(LANES.bit_length() - 1):  # each turns the numbering of all numbers by a bit
            rows = [
                builder.shuffle_vector(rows[row], rows[row + half], mask)
                for row in range(half)
                for mask in masks
            ]
        for row, vector in enumerate(rows):
            place = builder.add(to, builder.mul(stride, WORD(row)))
            builder.store(vector, builder.inttoptr(place, _FLOATS.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), generate


def _on_vectors(generate: Any) -> Any:
    """The intrinsic that does something with LANES float32 at two addresses, and a factor."""

    @intrinsic
    def on_vectors(_typing: Any, _source: Any, _to: Any, _factor: Any) -> Any:
        def emit(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            source, to = (builder.inttoptr(at, _FLOATS.as_pointer()) for at in arguments[:2])
            x = builder.load(source, align=4)
            generate(builder, x, to, spread(builder, arguments[2]))
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, types.float32), emit

    return on_vectors


def _scale(builder: Any, x: Any, to: Any, factor: Any) -> None:
    builder.store(builder.fmul(x, factor), to, align=4)


def _add_scaled(builder: Any, x: Any, to: Any, factor: Any) -> None:
    builder.store(multiply_add(builder, x, factor, builder.load(to, align=4)), to, align=4)


def call_llvm(builder: Any, name: str, kind: Any, *arguments: Any) -> Any:
    """What LLVM's intrinsic of a name, which gives a `kind`, makes of some arguments."""
    signature = ir.FunctionType(kind, [argument.type for argument in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, signature, name), arguments)


def multiply_add(builder: Any, left: Any, right: Any, total: Any) -> Any:
    """Left · right + total of vectors of float32."""
    return call_llvm(builder, f"llvm.fma.v{LANES}f32", _FLOATS, left, right, total)


def spread(builder: Any, number: Any) -> Any:
    """A number in all lanes of a vector."""
    undefined = ir.Constant(ir.VectorType(number.type, LANES), ir.Undefined)
    first = builder.insert_element(undefined, number, ir.IntType(32)(0))
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
    return builder.shuffle_vector(first, undefined, zeros)


# (source, to, factor): LANES float32 at `to` become factor · source, or have that added.
scale_vector, add_scaled_vector = _on_vectors(_scale), _on_vectors(_add_scaled)


def emit_prefetch(builder: Any, address: Any) -> None:
    """Ask for the cache line at an address, to be read soon; it may be no memory at all."""
    place = builder.inttoptr(address, ir.IntType(8).as_pointer())
    flags = (ir.IntType(32)(flag) for flag in (0, 2, 1))
    call_llvm(builder, "llvm.prefetch.p0", ir.VoidType(), place, *flags)


@intrinsic
def prefetch(_typing: Any, _address: Any) -> Any:
    """`emit_prefetch` as a function."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        emit_prefetch(builder, *arguments)
        return context.get_dummy_value()

    return types.void(types.int64), generate


@intrinsic
def float_of_bits(_typing: Any, _bits: Any) -> Any:
    """The float32 that has the bits of an int32."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.int32), generate


@intrinsic
def bits_of_float(_typing: Any, _x: Any) -> Any:
    """The bits of a float32, as an int32."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.IntType(32))

    return types.int32(types.float32), generate


@intrinsic
def nearest(_typing: Any, _x: Any) -> Any:
    """A float32 rounded to a whole one, halves to even."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        rint = builder.module.declare_intrinsic("llvm.rint", [ir.FloatType()])
        return builder.call(rint, arguments)

    return types.float32(types.float32), generate


def _chosen(sign: str) -> Any:
    """The intrinsic a if a `sign` b else b. Python's own is not made vectors, for NaN's sake."""

    @intrinsic
    def chosen(_typing: Any, _a: Any, _b: Any) -> Any:
        def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            return builder.select(builder.fcmp_ordered(sign, *arguments), *arguments)

        return types.float32(types.float32, types.float32), generate

    return chosen


lesser, greater = _chosen("<"), _chosen(">")

_LEAST, _MOST = np.float32(-87.0), np.float32(88.0)
_LOG2_E = np.float32(1.44269504)
_LN2_HIGH, _LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
# Of (e^r - 1 - r) / r², highest power first.
_P5, _P4, _P3, _P2, _P1, _P0 = (
    np.float32(c)
    for c in (1.9875691e-4, 1.3981999e-3, 8.3334519e-3, 4.1665795e-2, 1.6666665e-1, 5.0000001e-1)
)


@njit(inline="always", fastmath=FAST)
def exp(x):
    """e^x of a float32, within 2 ulp; e^−87 below −87, e^88 above 88. In a loop it becomes vectors.

    x = n ln 2 + r with |r| ≤ ln 2 / 2: n goes into the exponent, e^r is Cephes' polynomial.
    """
    x = lesser(greater(x, _LEAST), _MOST)
    n = nearest(x * _LOG2_E)
    r = x - n * _LN2_HIGH - n * _LN2_LOW
    p = ((((_P5 * r + _P4) * r + _P3) * r + _P2) * r + _P1) * r + _P0
    exponent = (np.int32(n) + np.int32(127)) << np.int32(23)
    return (p * r * r + r + np.float32(1.0)) * float_of_bits(exponent)


@njit(inline="always")
def half_of(x):
    """The bits of the bfloat16 nearest to a float32 that is a number; halves away from 0."""
    return np.uint16(np.uint32(bits_of_float(x) + np.int32(0x8000)) >> np.uint32(16))


# Of 2^r for |r| ≤ 1/2, highest power first: within 1e-4.
POWER_OF_TWO = 0.055171288, 0.24261109, 0.69326106, 0.99992808
_Q3, _Q2, _Q1, _Q0 = (np.float32(c) for c in POWER_OF_TWO)


@njit(inline="always", fastmath=FAST)
def coarse_power_of_two(x):
    """2^x of a float32 that is at most 0, within 1e-4 of itself; 2^−126 below −126."""
    x = greater(x, np.float32(-126.0))
    n = nearest(x)
    r = x - n
    p = ((_Q3 * r + _Q2) * r + _Q1) * r + _Q0
    return float_of_bits(bits_of_float(p) + (np.int32(n) << np.int32(23)))
