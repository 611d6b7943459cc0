"""Products of small matrices, written as LLVM vectors: what all heavy kernels come down to.

A block of the result stays in registers while it runs along the inner dimension: for each step a
few vectors of the right matrix are loaded, and one number of each row of the left one is spread
over a vector. (The inner kernel of GotoBLAS and BLIS.)

Three kinds of numbers: float32; two bfloat16 at a time, whose products are added to a float32
(AVX512_BF16); or four bytes at a time, unsigned on the left and signed on the right, whose products
are added to an int32 (VNNI). All move on by 4 bytes of the left matrix.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from branchline.kernels.jit.vector import FEATURES, LANES, WORD

# Rows and vectors of a block: as many sums as there are registers to hold them.
BLOCK_ROWS = 4 if LANES == 8 else 6
BLOCK_VECTORS = 2 if LANES == 8 else 4
HAS_BYTE_PRODUCTS = LANES == 16 and bool(FEATURES.get("avx512vnni"))
HAS_HALF_PRODUCTS = LANES == 16 and bool(FEATURES.get("avx512bf16"))

_INT, _FLOAT = ir.IntType(32), ir.FloatType()
_FLOATS, _INTS, _BYTES = (
    ir.VectorType(_FLOAT, LANES),
    ir.VectorType(_INT, LANES),
    ir.VectorType(ir.IntType(8), 4 * LANES),
)


class _BFloat(ir.Type):  # type: ignore[misc]
    """LLVM's bfloat, which llvmlite has no name for."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloat)

    def __hash__(self) -> int:
        return hash(_BFloat)


@dataclass(frozen=True, slots=True)
class _Floats:
    """float32 · float32 + float32."""

    number: Any = _FLOAT
    vector: Any = _FLOATS
    total: Any = _FLOATS

    def multiply_add(self, builder: Any, left: Any, right: Any, total: Any) -> Any:
        kind = ir.FunctionType(_FLOATS, [_FLOATS] * 3)
        fma = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fma.v{LANES}f32")
        return builder.call(fma, [left, right, total])


@dataclass(frozen=True, slots=True)
class _Halves:
    """Two products bfloat16 · bfloat16, added to a float32."""

    number: Any = _INT
    vector: Any = _INTS
    total: Any = _FLOATS

    def multiply_add(self, builder: Any, left: Any, right: Any, total: Any) -> Any:
        halves = ir.VectorType(_BFloat(), 2 * LANES)
        kind = ir.FunctionType(_FLOATS, [_FLOATS, halves, halves])
        name = "llvm.x86.avx512bf16.dpbf16ps.512"
        dot = cgutils.get_or_insert_function(builder.module, kind, name)
        left, right = builder.bitcast(left, halves), builder.bitcast(right, halves)
        return builder.call(dot, [total, left, right])


@dataclass(frozen=True, slots=True)
class _Bytes:
    """Four products uint8 · int8, added to an int32."""

    number: Any = _INT
    vector: Any = _INTS
    total: Any = _INTS

    def multiply_add(self, builder: Any, left: Any, right: Any, total: Any) -> Any:
        kind = ir.FunctionType(_INTS, [_INTS, _BYTES, _BYTES])
        name = "llvm.x86.avx512.vpdpbusd.512"
        dot = cgutils.get_or_insert_function(builder.module, kind, name)
        left, right = builder.bitcast(left, _BYTES), builder.bitcast(right, _BYTES)
        return builder.call(dot, [total, left, right])


def _block(kind: Any, rows: int, vectors: int) -> Any:
    """The intrinsic c += a b for a block: a [rows, inner], b [inner, vectors], c [rows, vectors].

    Its arguments: the addresses of a, b and c, each with the bytes from row to row, and `inner`.
    """

    @intrinsic
    def block(_t: Any, _a: Any, _as: Any, _b: Any, _bs: Any, _c: Any, _cs: Any, _inner: Any) -> Any:
        def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            _emit_block(builder, kind, rows, vectors, *arguments)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 7), generate

    return block


def _emit_block(
    builder: Any,
    kind: Any,
    rows: int,
    vectors: int,
    a: Any,
    a_stride: Any,
    b: Any,
    b_stride: Any,
    c: Any,
    c_stride: Any,
    inner: Any,
) -> None:
    def place(base: Any, stride: Any, row: Any, byte: Any, what: Any) -> Any:
        address = builder.add(builder.add(base, builder.mul(stride, row)), byte)
        return builder.inttoptr(address, what.as_pointer())

    def vector_place(base: Any, stride: Any, row: Any, vector: int) -> Any:
        return place(base, stride, row, WORD(vector * LANES * 4), kind.vector)

    def spread(number: Any) -> Any:
        undefined = ir.Constant(kind.vector, ir.Undefined)
        first = builder.insert_element(undefined, number, _INT(0))
        return builder.shuffle_vector(first, undefined, ir.Constant(_INTS, [0] * LANES))

    block = [(row, vector) for row in range(rows) for vector in range(vectors)]
    places = [
        place(c, c_stride, WORD(row), WORD(vector * LANES * 4), kind.total) for row, vector in block
    ]
    start = [builder.load(at, align=4) for at in places]
    before = builder.block
    loop, after = builder.append_basic_block("inner"), builder.append_basic_block("done")
    builder.branch(loop)

    builder.position_at_end(loop)
    step = builder.phi(WORD)
    step.add_incoming(WORD(0), before)
    carried = [builder.phi(kind.total) for _ in block]
    right = [
        builder.load(vector_place(b, b_stride, step, vector), align=4) for vector in range(vectors)
    ]
    byte = builder.shl(step, WORD(2))
    left = [
        spread(builder.load(place(a, a_stride, WORD(row), byte, kind.number), align=4))
        for row in range(rows)
    ]
    sums = [
        kind.multiply_add(builder, left[row], right[vector], total)
        for (row, vector), total in zip(block, carried, strict=True)
    ]
    following = builder.add(step, WORD(1))
    step.add_incoming(following, loop)
    for phi, first, total in zip(carried, start, sums, strict=True):
        phi.add_incoming(first, before)
        phi.add_incoming(total, loop)
    builder.cbranch(builder.icmp_signed("<", following, inner), loop, after)

    builder.position_at_end(after)
    for at, total in zip(places, sums, strict=True):
        builder.store(total, at, align=4)


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
        masks = [ir.Constant(_INTS, [lane + first for lane in low]) for first in (0, half)]
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


def _multiplier(kind: Any) -> Any:
    """C += a b of any number of rows and vectors, block by block."""

    def strip(vectors: int) -> Any:
        """For columns of one block's width."""
        one, two, three, four, whole = (
            _block(kind, rows, vectors) for rows in (1, 2, 3, 4, BLOCK_ROWS)
        )

        @njit
        def multiply_strip(a, a_stride, b, b_stride, c, c_stride, rows, inner):
            while rows >= BLOCK_ROWS:
                whole(a, a_stride, b, b_stride, c, c_stride, inner)
                a += BLOCK_ROWS * a_stride
                c += BLOCK_ROWS * c_stride
                rows -= BLOCK_ROWS
            if rows >= 4:
                four(a, a_stride, b, b_stride, c, c_stride, inner)
                a += 4 * a_stride
                c += 4 * c_stride
                rows -= 4
            if rows == 3:
                three(a, a_stride, b, b_stride, c, c_stride, inner)
            elif rows == 2:
                two(a, a_stride, b, b_stride, c, c_stride, inner)
            elif rows == 1:
                one(a, a_stride, b, b_stride, c, c_stride, inner)

        return multiply_strip

    wide, narrow = strip(BLOCK_VECTORS), strip(1)

    @njit
    def multiply(a, a_stride, b, b_stride, c, c_stride, rows, vectors, inner):
        while vectors >= BLOCK_VECTORS:
            wide(a, a_stride, b, b_stride, c, c_stride, rows, inner)
            b += BLOCK_VECTORS * LANES * 4
            c += BLOCK_VECTORS * LANES * 4
            vectors -= BLOCK_VECTORS
        while vectors > 0:
            narrow(a, a_stride, b, b_stride, c, c_stride, rows, inner)
            b += LANES * 4
            c += LANES * 4
            vectors -= 1

    return multiply


# (a, a_stride, b, b_stride, c, c_stride, rows, vectors, inner): c [rows, vectors · LANES] += a b,
# with a [rows, inner] and b [inner, vectors · LANES]; strides in bytes; inner > 0.
multiply_floats = _multiplier(_Floats())
# The same of bfloat16: a [rows, 2 · inner], b [inner, vectors · LANES, 2], c float32.
# As with bytes below, it is never called where the processor has no such products.
multiply_halves = _multiplier(_Halves()) if HAS_HALF_PRODUCTS else multiply_floats
# The same of bytes: a uint8 [rows, 4 · inner], b int8 [inner, vectors · LANES, 4], c int32.
# Without VNNI it is never called, but what calls it must compile.
multiply_bytes = _multiplier(_Bytes()) if HAS_BYTE_PRODUCTS else multiply_floats
