"""bfloat16 two at a time: how numbers become it, and are laid out for products of it.

Needs AVX512_BF16; see `product.HAS_HALF_PRODUCTS`.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from branchline.kernels.jit.vector import LANES, POWER_OF_TWO, WORD, call_llvm, multiply_add, spread

_INT = ir.IntType(32)
_FLOATS, _INTS = ir.VectorType(ir.FloatType(), LANES), ir.VectorType(_INT, LANES)


class BFloat(ir.Type):  # type: ignore[misc]
    """LLVM's bfloat, which llvmlite has no name for."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BFloat)

    def __hash__(self) -> int:
        return hash(BFloat)


def weigh(vectors: int) -> Any:
    """The intrinsic that makes a row of scores weights of bfloat16, 2^(score − highest).

    Its arguments: the addresses of `vectors` · LANES scores, of as many weights and of LANES
    totals, to which the weights are added; a score that none is higher than. Weights are within
    1e-4 of themselves before they are rounded.
    """

    @intrinsic
    def weigh_row(_t: Any, _scores: Any, _weights: Any, _totals: Any, _highest: Any) -> Any:
        def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            scores, weights, totals = (
                builder.inttoptr(at, kind.as_pointer())
                for at, kind in zip(arguments, (_FLOATS, _INTS, _FLOATS), strict=False)
            )
            highest = spread(builder, arguments[3])
            found = []
            for vector in range(vectors):
                score = builder.load(builder.gep(scores, [WORD(vector)]), align=4)
                found.append(_power_of_two(builder, builder.fsub(score, highest)))
            for pair in range(vectors // 2):
                halves = _halves_of(builder, *found[2 * pair : 2 * pair + 2])
                builder.store(halves, builder.gep(weights, [WORD(pair)]), align=4)
            while len(found) > 1:
                found = [*found[2:], builder.fadd(*found[:2])]
            builder.store(builder.fadd(builder.load(totals, align=4), *found), totals, align=4)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 3, types.float32), generate

    return weigh_row


@intrinsic
def halve_vectors(_t: Any, _source: Any, _to: Any, _factor: Any) -> Any:
    """2 · LANES float32, times a factor, as bfloat16 to another address."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        source = builder.inttoptr(arguments[0], _FLOATS.as_pointer())
        to = builder.inttoptr(arguments[1], _INTS.as_pointer())
        factor = spread(builder, arguments[2])
        vectors = [builder.load(builder.gep(source, [WORD(i)]), align=4) for i in range(2)]
        halves = _halves_of(builder, *(builder.fmul(vector, factor) for vector in vectors))
        builder.store(halves, to, align=4)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.float32), generate


def _power_of_two(builder: Any, x: Any) -> Any:
    """2^x of a vector, at most 0."""

    def constant(number: float) -> Any:
        return ir.Constant(_FLOATS, [number] * LANES)

    whole = call_llvm(builder, f"llvm.rint.v{LANES}f32", _FLOATS, x)
    rest = builder.fsub(x, whole)
    p = constant(POWER_OF_TWO[0])
    for coefficient in POWER_OF_TWO[1:]:
        p = multiply_add(builder, p, rest, constant(coefficient))
    mask, rounding = ir.IntType(LANES)(-1), _INT(4)
    name = "llvm.x86.avx512.mask.scalef.ps.512"
    return call_llvm(builder, name, _FLOATS, p, whole, p, mask, rounding)


def _halves_of(builder: Any, low: Any, high: Any) -> Any:
    """Two vectors as bfloat16, the nearest, in one."""
    halves = ir.VectorType(BFloat(), 2 * LANES)
    name = "llvm.x86.avx512bf16.cvtne2ps2bf16.512"
    return builder.bitcast(call_llvm(builder, name, halves, high, low), _INTS)


@intrinsic
def interleave(_t: Any, _even: Any, _odd: Any, _to: Any) -> Any:
    """Two rows of 2 · LANES bfloat16 in pairs, one of each row side by side."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        half, count = ir.IntType(16), 2 * LANES
        rows = [
            builder.load(builder.inttoptr(at, ir.VectorType(half, count).as_pointer()), align=2)
            for at in arguments[:2]
        ]
        to = builder.inttoptr(arguments[2], ir.VectorType(half, count).as_pointer())
        for part in range(2):
            lanes = [i // 2 + i % 2 * count + part * LANES for i in range(count)]
            mask = ir.Constant(ir.VectorType(_INT, count), lanes)
            pairs = builder.shuffle_vector(*rows, mask)
            builder.store(pairs, builder.gep(to, [WORD(part)]), align=4)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 3), generate
