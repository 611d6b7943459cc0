"""Attention over a plan with shared segments against plain attention per request, in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from branchline.kernels import KernelSet, Segment

from .sets import SETS
from .test_attention import SCALE, Batch, attention

pytestmark = pytest.mark.parametrize("kernels", SETS[1:], ids=lambda kernels: kernels.name)


@st.composite
def forests(draw: st.DrawFn) -> tuple[list[tuple[int, int]], list[Segment], int]:
    """Rows (queries, positions) below random trees of segments; the rows of a tree are adjacent."""
    rows: list[tuple[int, int]] = []
    segments: list[Segment] = []

    def grow(start: int, depth: int) -> None:
        length = draw(st.sampled_from([1, 2, 7, 31, 64]))
        first, place = len(rows), len(segments)
        while len(rows) - first < 2 or draw(st.booleans()):
            if depth < 3 and draw(st.integers(0, 3)) == 0:
                grow(start + length, depth + 1)
            else:
                queries = draw(st.sampled_from([1, 1, 1, 2, 5, 17]))
                before = draw(st.sampled_from([0, 0, 1, 9, 40]))
                rows.append((queries, start + length + before + queries))
            if len(rows) - first >= 6:
                break
        members = tuple(range(first, len(rows)))
        segments.insert(place, Segment(start, start + length, members))

    for _ in range(draw(st.integers(1, 3))):
        grow(0, 0)
        if draw(st.booleans()):
            queries = draw(st.integers(1, 3))
            rows.append((queries, queries + draw(st.integers(0, 40))))
    return rows, segments, draw(st.integers(0, 2**31))


def make_batch(rows: list[tuple[int, int]], segments: list[Segment], seed: int) -> Batch:
    """Scattered pages, shared by the members of a segment; all other pages hold NaN."""
    generator = torch.Generator().manual_seed(seed)
    kv_lens = [positions for _, positions in rows]
    page_rows = torch.zeros((len(rows), max(kv_lens)), dtype=torch.int64)
    total = sum(kv_lens) + 9
    fresh = iter((torch.randperm(total - 1, generator=generator) + 1).tolist())
    for row, count in enumerate(kv_lens):
        page_rows[row, :count] = torch.tensor([next(fresh) for _ in range(count)])
    for segment in segments:
        shared = slice(segment.start, segment.end)
        page_rows[list(segment.rows), shared] = page_rows[segment.rows[0], shared]
    k_pool = torch.full((total, 2, 16), float("nan"))
    v_pool = k_pool.clone()
    used = torch.cat([page_rows[row, :count] for row, count in enumerate(kv_lens)])
    for pool in (k_pool, v_pool):
        pool[used] = torch.randn((len(used), 2, 16), generator=generator)
    q_indptr = [0, *np.cumsum([queries for queries, _ in rows]).tolist()]
    q = torch.randn((q_indptr[-1], 6, 16), generator=generator)
    return Batch(q, k_pool, v_pool, q_indptr, kv_lens, page_rows)


@given(forest=forests())
@settings(max_examples=25, deadline=None)
def test_segments_change_nothing(kernels: KernelSet, forest) -> None:
    rows, segments, seed = forest
    batch = make_batch(rows, segments, seed)
    plan = kernels.plan(batch.q_indptr, batch.kv_lens, *batch.table(), segments)
    for _ in range(2):
        found = kernels.attention(batch.q, batch.k_pool, batch.v_pool, plan, SCALE)
        np.testing.assert_allclose(found.numpy(), attention(batch), atol=3e-6)


def test_a_long_extend_over_a_segment(kernels: KernelSet) -> None:
    rows = [(1, 330), (140, 440), (1, 310)]
    batch = make_batch(rows, [Segment(0, 300, (0, 1, 2))], 2)
    plan = kernels.plan(batch.q_indptr, batch.kv_lens, *batch.table(), [Segment(0, 300, (0, 1, 2))])
    found = kernels.attention(batch.q, batch.k_pool, batch.v_pool, plan, SCALE)
    np.testing.assert_allclose(found.numpy(), attention(batch), atol=3e-6)


def test_members_that_are_not_neighbours(kernels: KernelSet) -> None:
    rows = [(1, 60), (1, 30), (3, 60), (1, 61)]
    segments = [Segment(0, 40, (0, 2, 3)), Segment(40, 50, (0, 3))]
    batch = make_batch(rows, segments, 1)
    plan = kernels.plan(batch.q_indptr, batch.kv_lens, *batch.table(), segments)
    found = kernels.attention(batch.q, batch.k_pool, batch.v_pool, plan, SCALE)
    np.testing.assert_allclose(found.numpy(), attention(batch), atol=3e-6)
