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
    attend,
    fetch,
    find,
    greatest_score,
    look_ahead,
    mask,
    store,
    zero_row,
)
from branchline.kernels.jit.halves import halve_vectors, interleave, weigh
from branchline.kernels.jit.product import multiply_halves
from branchline.kernels.jit.team import Kernel
from branchline.kernels.jit.tiles import TILE_POSITIONS, TILE_ROWS
from branchline.kernels.jit.vector import (
    FAST,
    LANES,
    claim,
    coarse_power_of_two,
    float_of_bits,
    floats,
    prefetch,
    transpose,
    words,
)

if TYPE_CHECKING:
    from torch import Tensor

    from branchline.kernels.jit.attention import TilePlan

_ZERO = np.float32(0.0)
_LN2 = np.float32(math.log(2))
_SCORE_BYTES = 4 * TILE_POSITIONS
_WEIGHT_BYTES = 2 * TILE_POSITIONS
_weigh = weigh(TILE_POSITIONS // LANES)  # a row's scores over a block


def attention(q: Tensor, k_pool: Tensor, v_pool: Tensor, plan: TilePlan, sm_scale: float) -> Tensor:
    """softmax(q kᵀ · sm_scale) v of each row over its own pages; q float32, the pools bfloat16."""
    assert q.shape[2] % (2 * LANES) == 0, "heads are of whole vectors of pairs"
    return attend(_attend, q, k_pool, v_pool, plan, sm_scale * math.log2(math.e))


@Kernel
def _attend(address):
    """Each piece of work is one tile, for some heads of K and V."""
    a = words(address, 11)
    plan = words(a[2], 13)
    kv_heads, group, head_dim, q, out = a[3], a[4], a[5], a[6], a[7]
    k_pool, v_pool, scale = a[8], a[9], float_of_bits(np.int32(a[10]))
    count_runs, positions_at = plan[1], plan[3]
    rows, row_bytes, out_bytes = max(TILE_ROWS, group), 2 * head_dim, 4 * head_dim
    page_bytes = kv_heads * row_bytes
    at = plan[11] + claim(address + 8) * plan[12]
    q_at = at
    out_at = q_at + rows * row_bytes
    k_at = out_at + rows * out_bytes
    v_at = k_at + TILE_POSITIONS * row_bytes
    scores_at = v_at + TILE_POSITIONS * row_bytes
    weights_at = scores_at + rows * _SCORE_BYTES
    highest_at = weights_at + rows * _WEIGHT_BYTES
    totals_at = highest_at + 4 * rows
    zeros_at = totals_at + 4 * LANES * rows
    offsets_at = zeros_at + 4 * TILE_POSITIONS
    rows_at = offsets_at + 16 * TILE_POSITIONS
    zero_row(zeros_at)
    # Where the pages of this block lie, and those of the next, which may be of the next piece.
    now_at, next_at = offsets_at, offsets_at + 8 * TILE_POSITIONS
    piece = claim(address)
    if piece < count_runs:
        run = words(plan[0] + 56 * piece, 7)
        find(a[2], run, run[3], now_at, page_bytes)
    while piece < count_runs:
        run = words(plan[0] + 56 * piece, 7)
        count, start, end, first, heads = run[1], run[3], run[4], run[5], run[6]
        members_at = plan[2] + 16 * run[0]
        rows_here = count * group  # of a head
        for head in range(heads):
            _load_queries(
                q, q_at + head * rows_here * row_bytes, members_at, count, kv_heads, group,
                head_dim, first + head, scale,
            )  # fmt: skip
        _start(out_at, highest_at, totals_at, heads * rows_here, head_dim)
        seen_by_all = words(positions_at + 8 * words(members_at, 1)[0], 1)[0] + 1
        upcoming = count_runs
        for block in range(start, end, TILE_POSITIONS):
            positions = min(TILE_POSITIONS, end - block)
            vectors = (positions + LANES - 1) // LANES
            upcoming, next_first = look_ahead(address, a[2], run, block, next_at, page_bytes)
            for head in range(heads):
                soon_at = next_at if head == heads - 1 else now_at
                soon = row_bytes * (next_first if head == heads - 1 else first + head + 1)
                here = row_bytes * (first + head)
                _load_keys(
                    k_pool + here, k_at, now_at, vectors, rows_at, head_dim, k_pool + soon, soon_at
                )
                _load_values(
                    v_pool + here, v_at, now_at, positions, head_dim, v_pool + soon, soon_at
                )
                if positions < TILE_POSITIONS:
                    fetch(k_pool + soon, soon_at, vectors * LANES, row_bytes)
                    fetch(v_pool + soon, soon_at, positions, row_bytes)
                row = head * rows_here
                result_at = out_at + row * out_bytes
                multiply_halves(
                    q_at + row * row_bytes, row_bytes, k_at, _SCORE_BYTES, scores_at, _SCORE_BYTES,
                    rows_here, vectors, head_dim // 2, zeros_at, 0,
                )  # fmt: skip
                if block + TILE_POSITIONS > min(end, seen_by_all):
                    mask(scores_at, members_at, positions_at, count, group, block, end)
                _soften(
                    scores_at, weights_at, result_at, highest_at + 4 * row,
                    totals_at + 4 * LANES * row, rows_here, head_dim,
                )  # fmt: skip
                multiply_halves(
                    weights_at, _WEIGHT_BYTES, v_at, out_bytes, result_at, out_bytes, rows_here,
                    head_dim // LANES, (positions + 1) // 2, result_at, out_bytes,
                )  # fmt: skip
            now_at, next_at = next_at, now_at
        _add_up(highest_at, totals_at, heads * rows_here)
        for head in range(heads):
            row = head * rows_here
            store(
                out_at + row * out_bytes, highest_at + 4 * row, totals_at + 4 * row, members_at,
                count, kv_heads, group, head_dim, first + head, out, plan[6], plan[7],
            )  # fmt: skip
        piece = upcoming


@njit
def _load_queries(q, q_at, members_at, count, kv_heads, group, head_dim, head, scale):
    """The scaled queries of a tile's members, [count · group, head_dim]."""
    members, size = words(members_at, 2 * count), group * head_dim
    for member in range(count):
        source = q + 4 * size * (members[2 * member] * kv_heads + head)
        for i in range(0, size, 2 * LANES):
            halve_vectors(source + 4 * i, q_at + 2 * (member * size + i), scale)


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
def _load_keys(pool, k_at, offsets_at, vectors, rows_at, head_dim, next_pool, next_at):
    """Kᵀ of a block, [head_dim / 2, TILE_POSITIONS, 2]."""
    offsets, rows = words(offsets_at, TILE_POSITIONS), words(rows_at, TILE_POSITIONS)
    following = words(next_at, TILE_POSITIONS)
    for i in range(vectors * LANES):
        rows[i] = pool + offsets[i]
    for i in range(0, vectors * LANES, LANES):
        for pair in range(0, head_dim // 2, LANES):
            to = k_at + 4 * (pair * TILE_POSITIONS + i)
            transpose(rows_at + 8 * i, 4 * pair, to, _SCORE_BYTES)
            for j in range(i, i + LANES):
                prefetch(next_pool + following[j] + 4 * pair)


@njit
def _load_values(pool, v_at, offsets_at, positions, head_dim, next_pool, next_at):
    """V of a block, [TILE_POSITIONS / 2, head_dim, 2]."""
    offsets, following = words(offsets_at, TILE_POSITIONS), words(next_at, TILE_POSITIONS)
    for i in range(0, positions, 2):
        for byte in range(0, 2 * head_dim, 4 * LANES):
            interleave(
                pool + offsets[i] + byte, pool + offsets[i + 1] + byte,
                v_at + 2 * (head_dim * i + byte),
            )  # fmt: skip
            prefetch(next_pool + following[i] + byte)
            prefetch(next_pool + following[i + 1] + byte)


@njit(fastmath={*FAST, "nnan"})  # a maximum becomes vectors only if there is no NaN
def _soften(scores_at, weights_at, out_at, highest_at, totals_at, rows, head_dim):
    """Scores become weights under the highest score so far; what came before is scaled to it.

    A row's weights are added up lane by lane, so that nothing waits for a sum.
    """
    highest = floats(highest_at, rows)
    for row in range(rows):
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
        # Where nothing was seen yet the highest is that of masked scores: they count for nothing.
        _weigh(
            scores_at + _SCORE_BYTES * row, weights_at + _WEIGHT_BYTES * row,
            totals_at + 4 * LANES * row, max(highest[row], LOWEST),
        )  # fmt: skip


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
