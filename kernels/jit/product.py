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
from typing import Any, NamedTuple

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from branchline.kernels.jit.halves import BFloat
from branchline.kernels.jit.vector import (
    FEATURES,
    LANES,
    WORD,
    call_llvm,
    emit_prefetch,
    multiply_add,
    spread,
)

# Rows and vectors of a block: as many sums as there are registers to hold them.
BLOCK_ROWS = 4 if LANES == 8 else 6
BLOCK_VECTORS = 2 if LANES == 8 else 4
PANEL = BLOCK_VECTORS * LANES  # columns of a block
PANEL_BYTES = 4 * PANEL
HAS_BYTE_PRODUCTS = LANES == 16 and bool(FEATURES.get("avx512vnni"))
HAS_HALF_PRODUCTS = LANES == 16 and bool(FEATURES.get("avx512bf16"))

_INT, _FLOAT = ir.IntType(32), ir.FloatType()
_FLOATS, _INTS, _BYTES = (
    ir.VectorType(_FLOAT, LANES),
    ir.VectorType(_INT, LANES),
    ir.VectorType(ir.IntType(8), 4 * LANES),
)


@dataclass(frozen=True, slots=True)
class _Floats:
    """float32 · float32 + float32."""

    number: Any = _FLOAT
    vector: Any = _FLOATS
    total: Any = _FLOATS

    def multiply_add(self, builder: Any, left: Any, right: Any, total: Any) -> Any:
        return multiply_add(builder, left, right, total)

    def start(self, block: _Block) -> list[Any]:
        return block.bases()

    def finish(self, _block: _Block, sums: list[Any]) -> list[Any]:
        return sums


@dataclass(frozen=True, slots=True)
class _Halves(_Floats):
    """Two products bfloat16 · bfloat16, added to a float32."""

    number: Any = _INT
    vector: Any = _INTS

    def multiply_add(self, builder: Any, left: Any, right: Any, total: Any) -> Any:
        halves = ir.VectorType(BFloat(), 2 * LANES)
        left, right = builder.bitcast(left, halves), builder.bitcast(right, halves)
        name = "llvm.x86.avx512bf16.dpbf16ps.512"
        return call_llvm(builder, name, _FLOATS, total, left, right)


@dataclass(frozen=True, slots=True)
class _Bytes:
    """Four products uint8 · int8, added to an int32."""

    number: Any = _INT
    vector: Any = _INTS
    total: Any = _INTS

    def multiply_add(self, builder: Any, left: Any, right: Any, total: Any) -> Any:
        left, right = builder.bitcast(left, _BYTES), builder.bitcast(right, _BYTES)
        return call_llvm(builder, "llvm.x86.avx512.vpdpbusd.512", _INTS, total, left, right)

    def start(self, block: _Block) -> list[Any]:
        row = [block.load(block.frame, WORD(0), WORD(0), v, _INTS) for v in range(block.vectors)]
        return row * block.rows

    def finish(self, block: _Block, sums: list[Any]) -> list[Any]:
        builder, stride = block.builder, WORD(PANEL_BYTES)
        column_scales, shifts = (
            [block.load(block.frame, stride, WORD(row), v) for v in range(block.vectors)]
            for row in (1, 2)
        )
        scales, middles = (
            [
                block.spread(builder.add(block.tokens, WORD(at)), WORD(8), row)
                for row in range(block.rows)
            ]
            for at in (0, 4)
        )
        return [
            multiply_add(
                builder,
                builder.sitofp(total, _FLOATS),
                builder.fmul(column_scales[vector], scales[row]),
                multiply_add(builder, middles[row], shifts[vector], base),
            )
            for (row, vector), total, base in zip(block.places(), sums, block.bases(), strict=True)
        ]


def _block(kind: Any, rows: int, vectors: int, lines: int) -> Any:
    """The intrinsic c = base + a b for a block: a [rows, inner], b [inner, vectors], c as base.

    Its arguments: the addresses of a, b and c, each with the bytes from row to row; `inner`; the
    address of base, with its bytes from row to row; memory to be read soon, with the bytes to move
    on by at each step of `inner`, where `lines` cache lines are fetched; of bytes, what the
    sums are made numbers with.
    """

    @intrinsic
    def block(
        _t: Any, _a: Any, _as: Any, _b: Any, _bs: Any, _c: Any, _cs: Any, _inner: Any, _base: Any,
        _base_s: Any, _ahead: Any, _pace: Any, _frame: Any, _tokens: Any,
    ) -> Any:  # fmt: skip
        def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            _Block(builder, kind, rows, vectors, *arguments).emit(lines)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 13), generate

    return block


@dataclass(frozen=True, slots=True)
class _Block:
    """The words of one block, and how they are used."""

    builder: Any
    kind: Any
    rows: int
    vectors: int
    a: Any
    a_stride: Any
    b: Any
    b_stride: Any
    c: Any
    c_stride: Any
    inner: Any
    base: Any
    base_stride: Any
    ahead: Any
    pace: Any
    frame: Any
    tokens: Any

    def emit(self, lines: int) -> None:
        builder, kind = self.builder, self.kind
        start = kind.start(self)
        before = builder.block
        loop, after = builder.append_basic_block("inner"), builder.append_basic_block("done")
        builder.branch(loop)

        builder.position_at_end(loop)
        step = builder.phi(WORD)
        step.add_incoming(WORD(0), before)
        carried = [builder.phi(kind.total) for _ in start]
        for line in range(lines):
            place = builder.add(self.ahead, builder.mul(step, self.pace))
            emit_prefetch(builder, builder.add(place, WORD(64 * line)))
        right = [
            self.load(self.b, self.b_stride, step, v, kind.vector) for v in range(self.vectors)
        ]
        byte = builder.shl(step, WORD(2))
        left = [
            self.spread(builder.add(self.a, byte), self.a_stride, row, kind.number)
            for row in range(self.rows)
        ]
        sums = [
            kind.multiply_add(builder, left[row], right[vector], total)
            for (row, vector), total in zip(self.places(), carried, strict=True)
        ]
        following = builder.add(step, WORD(1))
        step.add_incoming(following, loop)
        for phi, first, total in zip(carried, start, sums, strict=True):
            phi.add_incoming(first, before)
            phi.add_incoming(total, loop)
        builder.cbranch(builder.icmp_signed("<", following, self.inner), loop, after)

        builder.position_at_end(after)
        for (row, vector), total in zip(self.places(), kind.finish(self, sums), strict=True):
            at = self.address(self.c, self.c_stride, WORD(row), vector)
            builder.store(total, builder.inttoptr(at, _FLOATS.as_pointer()), align=4)

    def places(self) -> list[tuple[int, int]]:
        """Row and vector of each sum."""
        return [(row, vector) for row in range(self.rows) for vector in range(self.vectors)]

    def address(self, matrix: Any, stride: Any, row: Any, vector: int) -> Any:
        at = self.builder.add(matrix, self.builder.mul(stride, row))
        return self.builder.add(at, WORD(vector * LANES * 4))

    def load(self, matrix: Any, stride: Any, row: Any, vector: int, what: Any = _FLOATS) -> Any:
        """A vector of a matrix."""
        at = self.address(matrix, stride, row, vector)
        return self.builder.load(self.builder.inttoptr(at, what.as_pointer()), align=4)

    def spread(self, matrix: Any, stride: Any, row: int, what: Any = _FLOAT) -> Any:
        """The first number of a row, in all lanes of a vector."""
        at = self.builder.inttoptr(self.address(matrix, stride, WORD(row), 0), what.as_pointer())
        return spread(self.builder, self.builder.load(at, align=4))

    def bases(self) -> list[Any]:
        """The vectors of base, in the order of `places`."""
        return [
            self.load(self.base, self.base_stride, WORD(row), vector)
            for row, vector in self.places()
        ]


class _Call(NamedTuple):
    """What a block is called with; see `_block`."""

    a: int
    a_stride: int
    b: int
    b_stride: int
    c: int
    c_stride: int
    inner: int
    base: int
    base_stride: int
    ahead: int
    pace: int
    frame: int
    tokens: int


@njit(inline="always")
def _below(call, rows):
    """The block that lies `rows` rows further down."""
    return _Call(
        call.a + rows * call.a_stride, call.a_stride, call.b, call.b_stride,
        call.c + rows * call.c_stride, call.c_stride, call.inner,
        call.base + rows * call.base_stride, call.base_stride,
        call.ahead + call.inner * call.pace, call.pace, call.frame, call.tokens + 8 * rows,
    )  # fmt: skip


def _strip(kind: Any, vectors: int, *, fetches: bool) -> Any:
    """C = base + a b of any number of rows, for columns of one block's width."""
    lines = -(-PANEL_BYTES // 64) if fetches else 0  # of a step's row of the next panel
    one, two, three, four = (_block(kind, n, vectors, lines) for n in (1, 2, 3, 4))
    whole = _block(kind, BLOCK_ROWS, vectors, min(2, lines))  # seldom the only one

    @njit
    def strip(call, rows):
        while rows >= BLOCK_ROWS:
            whole(*call)
            call = _below(call, BLOCK_ROWS)
            rows -= BLOCK_ROWS
        if rows >= 4:
            four(*call)
            call = _below(call, 4)
            rows -= 4
        if rows == 3:
            three(*call)
        elif rows == 2:
            two(*call)
        elif rows == 1:
            one(*call)

    return strip


def _multiplier(kind: Any) -> Any:
    """C = base + a b of any number of rows and vectors, block by block."""
    wide, narrow = (_strip(kind, vectors, fetches=False) for vectors in (BLOCK_VECTORS, 1))

    @njit
    def multiply(a, a_stride, b, b_stride, c, c_stride, rows, vectors, inner, base, base_stride):
        byte = 0
        while vectors > 0:
            call = _Call(
                a, a_stride, b + byte, b_stride, c + byte, c_stride, inner, base + byte,
                base_stride, 0, 0, 0, 0,
            )  # fmt: skip
            if vectors >= BLOCK_VECTORS:
                wide(call, rows)
                byte += PANEL_BYTES
                vectors -= BLOCK_VECTORS
            else:
                narrow(call, rows)
                byte += LANES * 4
                vectors -= 1

    return multiply


def _panel_multiplier(kind: Any) -> Any:
    """C = base + a b for a panel of b, or one vector of it; a whole panel has the next fetched."""
    wide = _strip(kind, BLOCK_VECTORS, fetches=True)
    narrow = _strip(kind, 1, fetches=False)

    @njit
    def multiply(
        a, a_stride, b, c, c_stride, rows, vectors, inner, base, base_stride, ahead, frame, tokens
    ):
        rest = rows % BLOCK_ROWS  # of which a strip makes one block, or two
        passes = rows // BLOCK_ROWS + (1 if rest > 0 else 0) + (1 if rest > 4 else 0)
        call = _Call(
            a, a_stride, b, PANEL_BYTES, c, c_stride, inner, base, base_stride, ahead,
            PANEL_BYTES // max(1, passes), frame, tokens,
        )  # fmt: skip
        if vectors == 1:
            narrow(call, rows)
        else:
            wide(call, rows)

    return multiply


# (a, a_stride, b, b_stride, c, c_stride, rows, vectors, inner, base, base_stride):
# c [rows, vectors · LANES] = base + a b, with a [rows, inner] and b [inner, vectors · LANES];
# strides in bytes, that of base may be 0; inner > 0. C may be base.
multiply_floats = _multiplier(_Floats())
# The same of bfloat16: a [rows, 2 · inner], b [inner, vectors · LANES, 2], c float32.
# As with bytes below, it is never called where the processor has no such products.
multiply_halves = _multiplier(_Halves()) if HAS_HALF_PRODUCTS else multiply_floats
# (a, a_stride, b, c, c_stride, rows, vectors, inner, base, base_stride, ahead, frame, tokens):
# the same for a panel, b [inner, PANEL], or one vector of its columns; as much as a panel is read
# into the cache from `ahead` on.
multiply_floats_panel = _panel_multiplier(_Floats())
# For a uint8 [rows, 4 · inner], b int8 [inner, PANEL, 4], and c float32:
#
#     c = base + (start + a b) · column_scale · scale + shift · middle
#
# where start, int32, column_scale and shift are the rows of `frame` [3, PANEL], and scale and
# middle of each row are in `tokens` [rows, 2].
# Without VNNI it is never called, but what calls it must compile.
multiply_bytes_panel = _panel_multiplier(_Bytes()) if HAS_BYTE_PRODUCTS else multiply_floats_panel
