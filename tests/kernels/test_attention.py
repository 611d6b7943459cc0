"""Attention over pages against softmax in float64 numpy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from branchline.kernels import KernelSet, reference_kernels

from .sets import COMPILED, SETS

SCALE = 0.3
HEADS = [(9, 3, 64), (4, 4, 16), (8, 1, 24), (1, 1, 2)]  # H, Hkv, D
# A batch is a list of rows, a row the number of its queries and of its positions.
BATCHES = {
    "one decode": [(1, 1)],
    "decodes of one length": [(1, 40)] * 5,
    "decodes of many lengths": [(1, n) for n in (3, 900, 1, 258, 257, 900, 2, 513)],
    "more decodes than one gather": [(1, 700 + n) for n in range(12)],
    "whole prompts": [(7, 7), (1, 1), (300, 300)],
    "extends": [(2, 3), (5, 700), (128, 129)],
    "decodes and extends, mixed": [(1, 30), (4, 9), (1, 31), (1, 400), (17, 17), (1, 2)],
}


@pytest.fixture(params=SETS, ids=lambda kernels: kernels.name)
def kernels(request: pytest.FixtureRequest) -> KernelSet:
    return request.param


@dataclass
class Batch:
    q: Tensor
    k_pool: Tensor
    v_pool: Tensor
    q_indptr: list[int]
    kv_lens: list[int]
    page_rows: Tensor  # int64 [R, >= max(kv_lens)]

    def table(self) -> tuple[Tensor, list[int]]:
        """A page table that has the rows in reverse order and others between; and their slots."""
        count = len(self.page_rows)
        slots = [2 * (count - 1 - row) + 1 for row in range(count)]
        page_table = torch.zeros((2 * count, self.page_rows.shape[1]), dtype=torch.int32)
        page_table[slots] = self.page_rows.int()
        return page_table, slots


def make_batch(
    rows: list[tuple[int, int]], heads: tuple[int, int, int], *, runs: bool = False
) -> Batch:
    """Rows over pages of their own, scattered or in runs; all other pages, 0 too, hold NaN."""
    generator = torch.Generator().manual_seed(len(rows))
    query_heads, kv_heads, size = heads
    kv_lens = [positions for _, positions in rows]
    total = sum(kv_lens) + 9
    order = torch.arange(1, total) if runs else torch.randperm(total - 1, generator=generator) + 1
    k_pool = torch.full((total, kv_heads, size), float("nan"))
    v_pool = k_pool.clone()
    page_rows = torch.zeros((len(rows), max(kv_lens) + 3), dtype=torch.int64)
    start = 0
    for row, count in enumerate(kv_lens):
        pages = order[start : start + count]
        page_rows[row, :count] = pages
        k_pool[pages] = torch.randn((count, kv_heads, size), generator=generator)
        v_pool[pages] = torch.randn((count, kv_heads, size), generator=generator)
        start += count
    q_indptr = [0, *np.cumsum([queries for queries, _ in rows]).tolist()]
    q = torch.randn((q_indptr[-1], query_heads, size), generator=generator)
    return Batch(q, k_pool, v_pool, q_indptr, kv_lens, page_rows)


def attention(batch: Batch) -> np.ndarray:
    """Each query by itself, in float64."""
    out = np.empty(batch.q.shape)
    group = batch.q.shape[1] // batch.k_pool.shape[1]
    for row, kv_len in enumerate(batch.kv_lens):
        start, end = batch.q_indptr[row], batch.q_indptr[row + 1]
        for token in range(start, end):
            seen = kv_len - (end - 1 - token)
            pages = batch.page_rows[row, :seen]
            for head in range(batch.q.shape[1]):
                keys = batch.k_pool[pages, head // group].double().numpy()
                scores = keys @ batch.q[token, head].double().numpy() * SCALE
                weights = np.exp(scores - scores.max())
                values = batch.v_pool[pages, head // group].double().numpy()
                out[token, head] = weights @ values / weights.sum()
    return out


def run(kernels: KernelSet, batch: Batch) -> Tensor:
    plan = kernels.plan(batch.q_indptr, batch.kv_lens, *batch.table(), ())
    first = kernels.attention(batch.q, batch.k_pool, batch.v_pool, plan, SCALE)
    again = kernels.attention(batch.q, batch.k_pool, batch.v_pool, plan, SCALE)
    torch.testing.assert_close(again, first, rtol=0, atol=0)  # a plan serves every layer
    return first


@pytest.mark.parametrize("rows", BATCHES.values(), ids=BATCHES.keys())
@pytest.mark.parametrize("runs", [False, True], ids=["scattered", "in runs"])
def test_attention(kernels: KernelSet, rows: list[tuple[int, int]], runs: bool) -> None:
    batch = make_batch(rows, (9, 3, 16), runs=runs)
    np.testing.assert_allclose(run(kernels, batch).numpy(), attention(batch), atol=2e-6)


@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_attention_with_other_heads(kernels: KernelSet, heads: tuple[int, int, int]) -> None:
    if kernels in COMPILED and heads[2] % 16:
        pytest.skip("its heads are whole vectors")
    batch = make_batch([(1, 30), (6, 31), (1, 5)], heads)
    np.testing.assert_allclose(run(kernels, batch).numpy(), attention(batch), atol=1e-5)


def test_attention_in_bfloat16(kernels: KernelSet) -> None:
    if kernels in COMPILED:
        pytest.skip("float32 only")
    batch = make_batch([(1, 300), (1, 20), (9, 40)], (4, 2, 32))
    batch.q, batch.k_pool, batch.v_pool = (
        x.bfloat16() for x in (batch.q, batch.k_pool, batch.v_pool)
    )
    found = run(kernels, batch)
    assert found.dtype == torch.bfloat16
    np.testing.assert_allclose(found.float().numpy(), attention(batch), atol=0.05)


def test_rows_share_pages(kernels: KernelSet) -> None:
    batch = make_batch([(1, 20), (3, 20), (1, 12)], (4, 2, 16))
    batch.page_rows[1, :10] = batch.page_rows[0, :10]
    batch.page_rows[2, :12] = batch.page_rows[0, :12]
    np.testing.assert_allclose(run(kernels, batch).numpy(), attention(batch), atol=2e-6)


def test_the_reference_runs_in_float64() -> None:
    batch = make_batch([(1, 9), (4, 6)], (4, 2, 8))
    batch.q, batch.k_pool, batch.v_pool = (
        x.double() for x in (batch.q, batch.k_pool, batch.v_pool)
    )
    np.testing.assert_allclose(
        run(reference_kernels(), batch).numpy(), attention(batch), atol=1e-12
    )
