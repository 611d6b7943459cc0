"""The least and the greatest of many numbers.

In Numba's words that is a chain of comparisons, each waiting for the one before.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from branchline.kernels.jit.vector import LANES, WORD, floats, greater, lesser

_FLOATS = ir.VectorType(ir.FloatType(), LANES)


@intrinsic
def _vector_extremes(_typing: Any, _address: Any, _count: Any) -> Any:
    """`extremes` of at least 4 · LANES."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address, count = arguments
        before = builder.block
        loop, after = builder.append_basic_block("blocks"), builder.append_basic_block("found")
        first = [_vector_at(builder, address, vector) for vector in range(4)]
        last = builder.sub(count, WORD(4 * LANES))
        builder.branch(loop)
        builder.position_at_end(loop)
        place = builder.phi(WORD)
        least = [builder.phi(_FLOATS) for _ in first]
        most = [builder.phi(_FLOATS) for _ in first]
        at = builder.add(address, builder.mul(place, WORD(4)))
        here = [_vector_at(builder, at, vector) for vector in range(4)]
        lower = [_chosen_of(builder, "<", *pair) for pair in zip(least, here, strict=True)]
        higher = [_chosen_of(builder, ">", *pair) for pair in zip(most, here, strict=True)]
        following = builder.add(place, WORD(4 * LANES))
        beyond = builder.icmp_signed(">", following, last)
        following = builder.select(beyond, last, following)  # some once more, at the end
        for phi, begin, result in zip([*least, *most], first * 2, [*lower, *higher], strict=True):
            phi.add_incoming(begin, before)
            phi.add_incoming(result, loop)
        place.add_incoming(WORD(0), before)
        place.add_incoming(following, loop)
        builder.cbranch(builder.icmp_signed("==", place, last), after, loop)
        builder.position_at_end(after)
        found = _chosen_lane(builder, "<", lower), _chosen_lane(builder, ">", higher)
        return context.make_tuple(builder, signature.return_type, found)

    return types.UniTuple(types.float32, 2)(types.int64, types.int64), generate


@njit
def extremes(address, count):
    """The least and the greatest of `count` float32 at an address, no NaN."""
    if count >= 4 * LANES:
        return _vector_extremes(address, count)
    x = floats(address, count)
    least = most = x[0]
    for i in range(1, count):
        least, most = lesser(least, x[i]), greater(most, x[i])
    return least, most


def greatest_of(vectors: int) -> Any:
    """The intrinsic that finds the greatest of `vectors` · LANES float32 at an address, no NaN."""

    @intrinsic
    def greatest(_typing: Any, _address: Any) -> Any:
        def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            found = [_vector_at(builder, arguments[0], vector) for vector in range(vectors)]
            return _chosen_lane(builder, ">", found)

        return types.float32(types.int64), generate

    return greatest


def _vector_at(builder: Any, address: Any, vector: int) -> Any:
    at = builder.inttoptr(address, _FLOATS.as_pointer())
    return builder.load(builder.gep(at, [WORD(vector)]), align=4)


def _chosen_of(builder: Any, sign: str, a: Any, b: Any) -> Any:
    return builder.select(builder.fcmp_ordered(sign, a, b), a, b)


def _chosen_lane(builder: Any, sign: str, vectors: list[Any]) -> Any:
    """The one of all lanes of some vectors that is `sign` than all others."""
    while len(vectors) > 1:
        vectors = [_chosen_of(builder, sign, *vectors[:2]), *vectors[2:]]
    (chosen,), width = vectors, LANES
    while width > 1:
        width //= 2
        lanes = ir.VectorType(ir.IntType(32), width)
        low, high = (
            builder.shuffle_vector(
                chosen, chosen, ir.Constant(lanes, list(range(first, first + width)))
            )
            for first in (0, width)
        )
        chosen = _chosen_of(builder, sign, low, high)
    return builder.extract_element(chosen, ir.IntType(32)(0))
