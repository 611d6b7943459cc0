"""Attention over tiles, compiled: each K and V is read from its page straight into the cache.

For each block of positions the scores of all of a tile's queries are one product and their share of
the result another, with the softmax running in between (FlashAttention-2; the merge by log-sum-exp
of queries that are in several tiles is Flash-Decoding's).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from numba import njit

from branchline.kernels.jit.arena import empty
from branchline.kernels.jit.product import multiply_floats
from branchline.kernels.jit.reductions import greatest_of
from branchline.kernels.jit.team import Kernel, bits, scratch
from branchline.kernels.jit.tiles import TILE_POSITIONS, TILE_ROWS, lay_out
from branchline.kernels.jit.vector import (
    FAST,
    LANES,
    add_scaled_vector,
    claim,
    copy_vector,
    exp,
    float_of_bits,
    floats,
    ints,
    prefetch,
    scale_vector,
    transpose,
    words,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from branchline.kernels.kernel_set import Segment

NOTHING = np.float32(-1e30)  # less than any score: what is masked, and where a maximum begins
LOWEST = np.float32(-1e29)
_ZERO, _ONE = np.float32(0.0), np.float32(1.0)
_SCORE_BYTES = 4 * TILE_POSITIONS
greatest_score = greatest_of(TILE_POSITIONS // LANES)  # of a row's over a block


class TilePlan:
    """One batch's tiles; see `KernelSet.plan`. Kernels find all of it through `header`."""

    def __init__(
        self,
        q_indptr: Sequence[int],
        kv_lens: Sequence[int],
        page_table: Tensor,
        slots: Sequence[int],
        segments: Sequence[Segment],
    ) -> None:
        self._batch = q_indptr, kv_lens, slots, segments
        assert page_table.stride(1) == 1
        self._page_table = page_table
        self.heads: tuple[int, int, int] | None = None  # group, K and V heads, head size
        self.merges = False  # whether a query's result is in several parts
        self.header = np.zeros(13, dtype=np.int64)

    def lay_out(self, heads: tuple[int, int, int]) -> None:
        """Find the tiles, for a model whose layers all have these heads."""
        if self.heads is not None:
            return
        self.heads = heads
        group, kv_heads, head_dim = heads
        threads = torch.get_num_threads()
        tiles = lay_out(*self._batch, group=group, kv_heads=kv_heads, threads=threads)
        part_out = torch.empty(tiles.parts, group * kv_heads, head_dim)
        part_lse = torch.empty(tiles.parts, group * kv_heads)
        memory, each = scratch(_scratch_size(max(TILE_ROWS, group), head_dim))
        self._kept = tiles, part_out, part_lse
        self.merges = tiles.parts > 0
        self.header[:] = (
            tiles.runs.ctypes.data,
            len(tiles.runs),
            tiles.members.ctypes.data,
            tiles.positions.ctypes.data,
            tiles.merges.ctypes.data,
            len(tiles.merges),
            part_out.data_ptr(),
            part_lse.data_ptr(),
            self._page_table.data_ptr(),
            self._page_table.stride(0),
            self._page_table.element_size(),
            memory,
            each,
        )

    def take(self, other: TilePlan) -> None:
        """Stand for another batch from now on: for the same kernels over as many tokens."""
        assert other.heads == self.heads
        assert other.merges == self.merges
        self._kept_for = other
        self.header[:] = other.header


def attention(q: Tensor, k_pool: Tensor, v_pool: Tensor, plan: TilePlan, sm_scale: float) -> Tensor:
    """softmax(q kᵀ · sm_scale) v of each row over its own pages; causal; grouped heads."""
    assert q.shape[2] % LANES == 0, "heads are of whole vectors"
    return attend(_attend, q, k_pool, v_pool, plan, sm_scale)


def attend(
    kernel: Kernel, q: Tensor, k_pool: Tensor, v_pool: Tensor, plan: TilePlan, scale: float
) -> Tensor:
    """What a kernel finds for each tile, and the merging of parts; it scales queries by `scale`."""
    _, heads, head_dim = q.shape
    kv_heads = k_pool.shape[1]
    plan.lay_out((heads // kv_heads, kv_heads, head_dim))
    assert q.is_contiguous()
    out = empty(*q.shape)
    header, to = plan.header.ctypes.data, out.data_ptr()
    kernel(
        header,
        kv_heads,
        heads // kv_heads,
        head_dim,
        q.data_ptr(),
        to,
        k_pool.data_ptr(),
        v_pool.data_ptr(),
        bits(scale),
        work=1 << 30,
    )
    if plan.merges:
        _merge(header, heads, head_dim, to, work=1 << 30)
    return out


def _scratch_size(rows: int, head_dim: int) -> int:
    """The float32 of one thread: q, out, Kᵀ, V, scores, maxima, sums, a block's places, zeros.

    Of K and V in bfloat16, the weights lie beside the scores and take what the queries do not.
    """
    blocks = 2 * rows * head_dim + 2 * TILE_POSITIONS * head_dim + rows * TILE_POSITIONS
    return blocks + (LANES + 1) * rows + 7 * TILE_POSITIONS


@Kernel
def _attend(address):
    """Each piece of work is one tile, for some heads of K and V."""
    a = words(address, 11)
    plan = words(a[2], 13)
    kv_heads, group, head_dim, q, out = a[3], a[4], a[5], a[6], a[7]
    k_pool, v_pool, scale = a[8], a[9], float_of_bits(np.int32(a[10]))
    count_runs, positions_at = plan[1], plan[3]
    rows, row_bytes = max(TILE_ROWS, group), 4 * head_dim
    page_bytes = kv_heads * row_bytes
    at = plan[11] + claim(address + 8) * plan[12]
    q_at = at
    out_at = q_at + rows * row_bytes
    k_at = out_at + rows * row_bytes
    v_at = k_at + TILE_POSITIONS * row_bytes
    scores_at = v_at + TILE_POSITIONS * row_bytes
    highest_at = scores_at + 4 * rows * TILE_POSITIONS
    total_at = highest_at + 4 * rows
    zeros_at = total_at + 4 * rows
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
        _start(out_at, highest_at, total_at, heads * rows_here, head_dim)
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
                result_at = out_at + row * row_bytes
                multiply_floats(
                    q_at + row * row_bytes, row_bytes, k_at, _SCORE_BYTES, scores_at, _SCORE_BYTES,
                    rows_here, vectors, head_dim, zeros_at, 0,
                )  # fmt: skip
                if block + TILE_POSITIONS > min(end, seen_by_all):
                    mask(scores_at, members_at, positions_at, count, group, block, end)
                _soften(
                    scores_at, result_at, highest_at + 4 * row, total_at + 4 * row, rows_here,
                    head_dim,
                )  # fmt: skip
                multiply_floats(
                    scores_at, _SCORE_BYTES, v_at, row_bytes, result_at, row_bytes, rows_here,
                    head_dim // LANES, positions, result_at, row_bytes,
                )  # fmt: skip
            now_at, next_at = next_at, now_at
        for head in range(heads):
            row = head * rows_here
            store(
                out_at + row * row_bytes, highest_at + 4 * row, total_at + 4 * row, members_at,
                count, kv_heads, group, head_dim, first + head, out, plan[6], plan[7],
            )  # fmt: skip
        piece = upcoming


@njit
def _load_queries(q, q_at, members_at, count, kv_heads, group, head_dim, head, scale):
    """The scaled queries of a tile's members, [count · group, head_dim]."""
    members, size = words(members_at, 2 * count), 4 * group * head_dim
    for member in range(count):
        source = q + size * (members[2 * member] * kv_heads + head)
        for byte in range(0, size, 4 * LANES):
            scale_vector(source + byte, q_at + member * size + byte, scale)


@njit(fastmath=FAST)
def _start(out_at, highest_at, total_at, rows, head_dim):
    out = floats(out_at, rows * head_dim)
    for i in range(rows * head_dim):
        out[i] = _ZERO
    highest, total = floats(highest_at, rows), floats(total_at, rows)
    for row in range(rows):
        highest[row] = NOTHING
        total[row] = _ZERO


@njit
def look_ahead(address, plan_at, run, block, next_at, page_bytes):
    """Find the pages of the block after this one, or, at the end of a run, of the next piece's.

    Returns that piece, claimed, else one beyond the last; and the first head of what comes next.
    """
    plan = words(plan_at, 13)
    if block + TILE_POSITIONS < run[4]:
        find(plan_at, run, block + TILE_POSITIONS, next_at, page_bytes)
        return plan[1], run[5]
    upcoming = claim(address)
    if upcoming >= plan[1]:
        return upcoming, run[5]
    following = words(plan[0] + 56 * upcoming, 7)
    find(plan_at, following, following[3], next_at, page_bytes)
    return upcoming, following[5]


@njit
def find(plan_at, run, block, to_at, page_bytes):
    """Where the pages of a block of a run lie in their pools, in bytes, [TILE_POSITIONS].

    Beyond the end stands the first position again: it is masked, and what it holds is a number.
    """
    plan, to = words(plan_at, 13), words(to_at, TILE_POSITIONS)
    table, stride, size = plan[8], plan[9], plan[10]
    here = min(TILE_POSITIONS, run[4] - block)
    at = table + size * (run[2] * stride + block)
    if size == 4:
        short = ints(at, here)
        for i in range(here):
            to[i] = page_bytes * np.int64(short[i])
    else:
        long = words(at, here)
        for i in range(here):
            to[i] = page_bytes * long[i]
    for i in range(here, TILE_POSITIONS):
        to[i] = to[0]


@njit
def fetch(pool, offsets_at, first, row_bytes):
    """Have a block's K or V fetched, from its position `first` on."""
    offsets = words(offsets_at, TILE_POSITIONS)
    for i in range(first, TILE_POSITIONS):
        for byte in range(0, row_bytes, 64):
            prefetch(pool + offsets[i] + byte)


@njit
def _load_keys(pool, k_at, offsets_at, vectors, rows_at, head_dim, next_pool, next_at):
    """Kᵀ of a block, [head_dim, TILE_POSITIONS]; the next head's or block's are fetched too."""
    offsets, rows = words(offsets_at, TILE_POSITIONS), words(rows_at, TILE_POSITIONS)
    following = words(next_at, TILE_POSITIONS)
    for i in range(vectors * LANES):
        rows[i] = pool + offsets[i]
    for i in range(0, vectors * LANES, LANES):
        for d in range(0, head_dim, LANES):
            to = k_at + 4 * (d * TILE_POSITIONS + i)
            transpose(rows_at + 8 * i, 4 * d, to, _SCORE_BYTES)
            for j in range(i, i + LANES):
                prefetch(next_pool + following[j] + 4 * d)


@njit
def _load_values(pool, v_at, offsets_at, positions, head_dim, next_pool, next_at):
    """V of a block, [TILE_POSITIONS, head_dim]; the next head's or block's are fetched too."""
    offsets, following = words(offsets_at, TILE_POSITIONS), words(next_at, TILE_POSITIONS)
    for i in range(positions):
        for byte in range(0, 4 * head_dim, 4 * LANES):
            copy_vector(pool + offsets[i] + byte, v_at + 4 * head_dim * i + byte)
            prefetch(next_pool + following[i] + byte)


@njit
def zero_row(at):
    """What scores begin with, [TILE_POSITIONS]."""
    row = floats(at, TILE_POSITIONS)
    for i in range(TILE_POSITIONS):
        row[i] = _ZERO


@njit(fastmath=FAST)
def mask(scores_at, members_at, positions_at, count, group, block, end):
    """What a query does not see scores less than anything."""
    members, here = words(members_at, 2 * count), min(TILE_POSITIONS, end - block)
    for member in range(count):
        position = words(positions_at + 8 * members[2 * member], 1)[0]
        seen = max(0, min(here, position - block + 1))
        if seen < TILE_POSITIONS:
            for row in range(member * group, (member + 1) * group):
                scores = floats(scores_at + _SCORE_BYTES * row, TILE_POSITIONS)
                for i in range(seen, TILE_POSITIONS):
                    scores[i] = NOTHING


@njit(fastmath={*FAST, "nnan"})  # a maximum becomes vectors only if there is no NaN
def _soften(scores_at, out_at, highest_at, total_at, rows, head_dim):
    """Scores become weights under the highest score so far; what came before is scaled to it."""
    highest, total = floats(highest_at, rows), floats(total_at, rows)
    for row in range(rows):
        most = greatest_score(scores_at + _SCORE_BYTES * row)
        if most > highest[row]:
            kept = exp(highest[row] - most)
            highest[row] = most
            total[row] *= kept
            out = floats(out_at + 4 * head_dim * row, head_dim)
            for i in range(head_dim):
                out[i] *= kept
    for row in range(rows):
        scores = floats(scores_at + _SCORE_BYTES * row, TILE_POSITIONS)
        # Where nothing was seen yet the highest is that of masked scores: they count for nothing.
        most = max(highest[row], LOWEST)
        added = _ZERO
        for i in range(TILE_POSITIONS):
            scores[i] = exp(scores[i] - most)
            added += scores[i]
        total[row] += added


@njit(fastmath=FAST)
def store(
    out_at, highest_at, total_at, members_at, count, kv_heads, group, head_dim, head,
    out, part_out, part_lse,
):  # fmt: skip
    """Results to their place: the tokens' own, or that of a part, with its log-sum-exp."""
    members = words(members_at, 2 * count)
    highest, total = floats(highest_at, count * group), floats(total_at, count * group)
    heads = kv_heads * group
    for member in range(count):
        token, part = members[2 * member], members[2 * member + 1]
        base, place = (out, token) if part < 0 else (part_out, part)
        for i in range(group):
            row, column = member * group + i, head * group + i
            source = out_at + 4 * head_dim * row
            to = base + 4 * head_dim * (place * heads + column)
            share = _ONE / total[row] if total[row] > _ZERO else _ZERO
            for byte in range(0, 4 * head_dim, 4 * LANES):
                scale_vector(source + byte, to + byte, share)
            if part >= 0:
                lse = floats(part_lse + 4 * (part * heads + column), 1)
                lse[0] = (
                    np.float32(highest[row] + math.log(total[row]))
                    if total[row] > _ZERO
                    else NOTHING
                )


@Kernel
def _merge(address):
    """Each piece of work is one token whose result is in several parts."""
    a = words(address, 6)
    plan = words(a[2], 13)
    heads, head_dim = a[3], a[4]
    merges = words(plan[4], 3 * plan[5])
    while True:
        piece = claim(address)
        if piece >= plan[5]:
            break
        token, first, count = merges[3 * piece], merges[3 * piece + 1], merges[3 * piece + 2]
        for head in range(heads):
            _merge_parts(plan[6], plan[7], a[5], token, first, count, head, heads, head_dim)


@njit(fastmath=FAST)
def _merge_parts(part_out, part_lse, out, token, first, count, head, heads, head_dim):
    lse = floats(part_lse, (first + count) * heads)
    most = NOTHING
    for part in range(first, first + count):
        most = max(most, lse[part * heads + head])
    total = _ZERO
    for part in range(first, first + count):
        total += exp(lse[part * heads + head] - most)
    to = out + 4 * head_dim * (token * heads + head)
    for part in range(first, first + count):
        weight = exp(lse[part * heads + head] - most) / total
        source = part_out + 4 * head_dim * (part * heads + head)
        for byte in range(0, 4 * head_dim, 4 * LANES):
            if part == first:
                scale_vector(source + byte, to + byte, weight)
            else:
                add_scaled_vector(source + byte, to + byte, weight)
