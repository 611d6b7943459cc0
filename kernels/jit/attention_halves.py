"""Attention over K and V that are kept in bfloat16, compiled: both products are of bfloat16.

As `branchline.kernels.jit.attention`, over the same tiles, with the sums and the softmax in
float32. Numbers lie in pairs, as the processor multiplies them: two dimensions of a query or a key,
two positions of a weight or a value. Scores are of base 2, which is folded into the queries.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from branchline.kernels.jit.attention import (
    LOWEST,
    NOTHING,
    announce,
    attend,
    find,
    greatest_score,
    mask,
    store,
    zero_row,
)
from branchline.kernels.jit.product import multiply_halves, transpose
from branchline.kernels.jit.team import Kernel
from branchline.kernels.jit.tiles import TILE_POSITIONS, TILE_ROWS
from branchline.kernels.jit.vector import (
    FAST,
    LANES,
    claim,
    coarse_power_of_two,
    float_of_bits,
    floats,
    half_of,
    halves,
    ints,
    words,
)

if TYPE_CHECKING:
    from torch import Tensor

    from branchline.kernels.jit.attention import TilePlan

_ZERO = np.float32(0.0)
_LN2 = np.float32(math.log(2))
_SCORE_BYTES = 4 * TILE_POSITIONS
_WEIGHT_BYTES = 2 * TILE_POSITIONS
_QUARTER = TILE_POSITIONS // 4


def attention(q: Tensor, k_pool: Tensor, v_pool: Tensor, plan: TilePlan, sm_scale: float) -> Tensor:
    """softmax(q kᵀ · sm_scale) v of each row over its own pages; q float32, the pools bfloat16."""
    assert q.shape[2] % (2 * LANES) == 0, "heads are of whole vectors of pairs"
    return attend(_attend, q, k_pool, v_pool, plan, sm_scale * math.log2(math.e))


@Kernel
def _attend(address):
    """Each piece of work is one tile for one K and V head."""
    a = words(address, 11)
    plan = words(a[2], 13)
    kv_heads, group, head_dim, q, out = a[3], a[4], a[5], a[6], a[7]
    k_pool, v_pool, scale = a[8], a[9], float_of_bits(np.int32(a[10]))
    count_runs, positions_at = plan[1], plan[3]
    table, stride, number = plan[8], plan[9], plan[10]
    runs = words(plan[0], 5 * count_runs)
    rows, row_bytes = max(TILE_ROWS, group), 2 * head_dim
    at = plan[11] + claim(address + 8) * plan[12]
    q_at = at
    out_at = q_at + rows * row_bytes
    k_at = out_at + 4 * rows * head_dim
    v_at = k_at + TILE_POSITIONS * row_bytes
    scores_at = v_at + TILE_POSITIONS * row_bytes
    weights_at = scores_at + rows * _SCORE_BYTES
    highest_at = weights_at + rows * _WEIGHT_BYTES
    totals_at = highest_at + 4 * rows
    offsets_at = totals_at + 4 * LANES * rows
    rows_at = offsets_at + 8 * TILE_POSITIONS
    zeros_at = rows_at + 8 * TILE_POSITIONS
    zero_row(zeros_at)
    while True:
        piece = claim(address)
        if piece >= count_runs * kv_heads:
            break
        run, head = piece // kv_heads, piece % kv_heads
        count, slot, start, end = (
            runs[5 * run + 1],
            runs[5 * run + 2],
            runs[5 * run + 3],
            runs[5 * run + 4],
        )
        members_at = plan[2] + 16 * runs[5 * run]
        _load_queries(q, q_at, members_at, count, kv_heads, group, head_dim, head, scale)
        seen_by_all = words(positions_at + 8 * words(members_at, 1)[0], 1)[0] + 1
        _start(out_at, highest_at, totals_at, count * group, head_dim)
        find(
            table, stride, number, slot, start, min(TILE_POSITIONS, end - start), offsets_at,
            kv_heads, row_bytes, head,
        )  # fmt: skip
        announce(k_pool, v_pool, offsets_at, row_bytes)
        for block in range(start, end, TILE_POSITIONS):
            here = min(TILE_POSITIONS, end - block)
            _load_keys(k_pool, k_at, offsets_at, rows_at, head_dim)
            _load_values(v_pool, v_at, offsets_at, head_dim)
            following = min(TILE_POSITIONS, end - block - TILE_POSITIONS)
            if following > 0:
                find(
                    table, stride, number, slot, block + TILE_POSITIONS, following, offsets_at,
                    kv_heads, row_bytes, head,
                )  # fmt: skip
                announce(k_pool, v_pool, offsets_at, row_bytes)
            multiply_halves(
                q_at, row_bytes, k_at, _SCORE_BYTES, scores_at, _SCORE_BYTES, count * group,
                TILE_POSITIONS // LANES, head_dim // 2, zeros_at, 0,
            )  # fmt: skip
            if here < TILE_POSITIONS or block + TILE_POSITIONS > seen_by_all:
                mask(scores_at, members_at, positions_at, count, group, block, here)
            _soften(scores_at, weights_at, out_at, highest_at, totals_at, count * group, head_dim)
            multiply_halves(
                weights_at, _WEIGHT_BYTES, v_at, 4 * head_dim, out_at, 4 * head_dim,
                count * group, head_dim // LANES, TILE_POSITIONS // 2, out_at, 4 * head_dim,
            )  # fmt: skip
        _add_up(highest_at, totals_at, count * group)
        store(
            out_at, highest_at, totals_at, members_at, count, kv_heads, group, head_dim, head,
            out, plan[6], plan[7],
        )  # fmt: skip


@njit(fastmath=FAST)
def _load_queries(q, q_at, members_at, count, kv_heads, group, head_dim, head, scale):
    """The scaled queries of a tile's members, [count · group, head_dim]."""
    members = words(members_at, 2 * count)
    size = group * head_dim
    to = halves(q_at, count * size)
    for member in range(count):
        token = members[2 * member]
        source = floats(q + 4 * size * (token * kv_heads + head), size)
        for i in range(size):
            to[member * size + i] = half_of(source[i] * scale)


@njit(fastmath=FAST)
def _start(out_at, highest_at, totals_at, rows, head_dim):
    out, highest = floats(out_at, rows * head_dim), floats(highest_at, rows)
    totals = floats(totals_at, rows * LANES)
    for i in range(rows * head_dim):
        out[i] = _ZERO
    for i in range(rows * LANES):
        totals[i] = _ZERO
    for row in range(rows):
        highest[row] = NOTHING


@njit
def _load_keys(pool, k_at, offsets_at, rows_at, head_dim):
    """Kᵀ of a block, [head_dim / 2, TILE_POSITIONS, 2]."""
    offsets, rows = words(offsets_at, TILE_POSITIONS), words(rows_at, TILE_POSITIONS)
    for i in range(TILE_POSITIONS):
        rows[i] = pool + offsets[i]
    for i in range(0, TILE_POSITIONS, LANES):
        for pair in range(0, head_dim // 2, LANES):
            to = k_at + 4 * (pair * TILE_POSITIONS + i)
            transpose(rows_at + 8 * i, 4 * pair, to, _SCORE_BYTES)


@njit
def _load_values(pool, v_at, offsets_at, head_dim):
    """V of a block, [TILE_POSITIONS / 2, head_dim, 2]."""
    offsets = words(offsets_at, TILE_POSITIONS)
    for i in range(0, TILE_POSITIONS, 2):
        even = halves(pool + offsets[i], head_dim)
        odd = halves(pool + offsets[i + 1], head_dim)
        to = ints(v_at + 2 * head_dim * i, head_dim)
        for d in range(head_dim):
            to[d] = np.int32(even[d]) | (np.int32(odd[d]) << np.int32(16))


@njit(fastmath={*FAST, "nnan"})  # a maximum becomes vectors only if there is no NaN
def _soften(scores_at, weights_at, out_at, highest_at, totals_at, rows, head_dim):
    """Scores become weights under the highest score so far; what came before is scaled to it.

    A row's weights are added up lane by lane, so that nothing waits for a sum.
    """
    highest = floats(highest_at, rows)
    for row in range(rows):
        scores = floats(scores_at + _SCORE_BYTES * row, TILE_POSITIONS)
        totals = floats(totals_at + 4 * LANES * row, LANES)
        most = greatest_score(scores_at + _SCORE_BYTES * row)
        if most > highest[row]:
            kept = coarse_power_of_two(highest[row] - most)
            highest[row] = most
            out = floats(out_at + 4 * head_dim * row, head_dim)
            for i in range(LANES):
                totals[i] *= kept
            for i in range(head_dim):
                out[i] *= kept
    for row in range(rows):
        scores = floats(scores_at + _SCORE_BYTES * row, TILE_POSITIONS)
        weights = halves(weights_at + _WEIGHT_BYTES * row, TILE_POSITIONS)
        totals = floats(totals_at + 4 * LANES * row, LANES)
        # Where nothing was seen yet the highest is that of masked scores: they count for nothing.
        most = max(highest[row], LOWEST)
        for i in range(_QUARTER):
            first = coarse_power_of_two(scores[i] - most)
            second = coarse_power_of_two(scores[_QUARTER + i] - most)
            third = coarse_power_of_two(scores[2 * _QUARTER + i] - most)
            fourth = coarse_power_of_two(scores[3 * _QUARTER + i] - most)
            weights[i] = half_of(first)
            weights[_QUARTER + i] = half_of(second)
            weights[2 * _QUARTER + i] = half_of(third)
            weights[3 * _QUARTER + i] = half_of(fourth)
            totals[i] += (first + second) + (third + fourth)


@njit(fastmath=FAST)
def _add_up(highest_at, totals_at, rows):
    """The total of each row, [rows], in place; highest scores of base e."""
    highest, totals = floats(highest_at, rows), floats(totals_at, rows * LANES)
    for row in range(rows):
        total = _ZERO
        for i in range(LANES):
            total += totals[row * LANES + i]
        totals[row] = total
        highest[row] *= _LN2
