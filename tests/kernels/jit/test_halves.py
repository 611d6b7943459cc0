"""K and V in bfloat16: what is kept, and attention over it, against float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from numba import njit

from branchline.kernels.jit.halves import halve_vectors, interleave, weigh
from branchline.kernels.jit.product import HAS_HALF_PRODUCTS, multiply_halves
from branchline.kernels.jit.reductions import extremes, greatest_of
from branchline.kernels.jit.team import jit_is_available
from branchline.kernels.jit.vector import LANES, coarse_power_of_two

from .. import test_segments
from ..test_attention import BATCHES, SCALE, Batch, attention, make_batch, run

if not (jit_is_available() and HAS_HALF_PRODUCTS):
    pytest.skip("the processor has no products of bfloat16", allow_module_level=True)

from branchline.kernels.jit.device import jit_int8_kernels

KERNELS = jit_int8_kernels(halves=True)
# Each weight, query, key and value is within 2^-9 of what it was; none is larger than about 4.
TOLERANCE = 0.03


def rounded(batch: Batch) -> Batch:
    batch.q = batch.q.bfloat16().float()
    batch.k_pool, batch.v_pool = batch.k_pool.bfloat16(), batch.v_pool.bfloat16()
    return batch


@pytest.mark.parametrize("rows", BATCHES.values(), ids=BATCHES.keys())
@pytest.mark.parametrize("heads", [(9, 3, 64), (4, 4, 32), (8, 1, 96)], ids=str)
def test_attention(rows: list[tuple[int, int]], heads: tuple[int, int, int]) -> None:
    batch = rounded(make_batch(rows, heads))
    np.testing.assert_allclose(run(KERNELS, batch).numpy(), attention(batch), atol=TOLERANCE)


@given(forest=test_segments.forests())
@settings(max_examples=25, deadline=None)
def test_segments_change_nothing(forest) -> None:
    rows, segments, seed = forest
    narrow = test_segments.make_batch(rows, segments, seed)
    # Heads twice as long: the second half is the first, so scores double and results repeat.
    q, k_pool, v_pool = (
        torch.cat([x, x], dim=-1) for x in (narrow.q, narrow.k_pool, narrow.v_pool)
    )
    batch = rounded(Batch(q, k_pool, v_pool, narrow.q_indptr, narrow.kv_lens, narrow.page_rows))
    plan = KERNELS.plan(batch.q_indptr, batch.kv_lens, *batch.table(), segments)
    for _ in range(2):
        found = KERNELS.attention(batch.q, batch.k_pool, batch.v_pool, plan, SCALE)
        np.testing.assert_allclose(found.numpy(), attention(batch), atol=TOLERANCE)


def test_a_score_far_above_the_rest_takes_all() -> None:
    batch = make_batch([(1, 200), (3, 130)], (4, 2, 32))
    batch.q *= 1000
    batch = rounded(batch)
    plan = KERNELS.plan(batch.q_indptr, batch.kv_lens, *batch.table(), ())
    found = KERNELS.attention(batch.q, batch.k_pool, batch.v_pool, plan, SCALE)
    wanted = attention(batch)
    near = np.isclose(found.numpy(), wanted, atol=TOLERANCE).all(axis=-1)
    assert near.mean() > 0.8  # scores of hundreds, each within 2^-9 of itself: a few are near ties


def test_what_is_written_is_the_nearest_bfloat16() -> None:
    generator = torch.Generator().manual_seed(0)
    tokens, heads, kv_heads, size = 11, 6, 3, 64
    qkv = torch.randn((tokens, heads + 2 * kv_heads, size), generator=generator)
    q, k, v = qkv.split([heads, kv_heads, kv_heads], dim=1)
    angles = torch.rand((40, size // 2), generator=generator)
    table = torch.cat((angles.cos(), angles.sin()), dim=1)
    positions, pages = torch.arange(7, 18), torch.randperm(20, generator=generator)[:tokens] + 1
    exact = [torch.zeros(21, kv_heads, size) for _ in range(2)]
    halves = [pool.bfloat16() for pool in exact]
    wanted = KERNELS.rope_and_write(q, k, v, table, positions, pages, *exact)
    wanted = wanted.clone()
    found = KERNELS.rope_and_write(q, k, v, table, positions, pages, *halves)
    assert torch.equal(found, wanted)
    for pool, half in zip(exact, halves, strict=True):
        assert torch.equal(half, pool.bfloat16())


@pytest.mark.parametrize(
    ("rows", "vectors", "inner"), [(1, 1, 1), (6, 4, 7), (7, 5, 64), (4, 9, 16)]
)
def test_products(rows: int, vectors: int, inner: int) -> None:
    @njit
    def call(a, a_stride, b, b_stride, c, c_stride, rows, vectors, inner):
        multiply_halves(a, a_stride, b, b_stride, c, c_stride, rows, vectors, inner, c, c_stride)

    generator = torch.Generator().manual_seed(rows)
    a = torch.randn((rows, 2 * inner), generator=generator).bfloat16()
    b = torch.randn((2 * inner, vectors * LANES), generator=generator).bfloat16()
    in_pairs = b.view(inner, 2, -1).transpose(1, 2).contiguous()
    c = torch.randn((rows, vectors * LANES), generator=generator)
    wanted = c.double() + a.double() @ b.double()
    call(
        a.data_ptr(), 4 * inner, in_pairs.data_ptr(), 4 * vectors * LANES, c.data_ptr(),
        4 * vectors * LANES, rows, vectors, inner,
    )  # fmt: skip
    torch.testing.assert_close(c.double(), wanted, rtol=1e-5, atol=1e-5)


def test_scores_become_weights() -> None:
    row = weigh(4)

    @njit
    def call(scores, weights, totals, highest):
        row(scores, weights, totals, highest)

    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(4 * LANES, generator=generator) * 20
    scores[3], scores[20] = -1e30, float(scores.max()) - 140  # masked; all but nothing
    highest = float(scores.max())
    weights = torch.zeros(4 * LANES, dtype=torch.bfloat16)
    totals = torch.ones(LANES)
    call(scores.data_ptr(), weights.data_ptr(), totals.data_ptr(), np.float32(highest))
    wanted = torch.exp2(scores.double() - highest)
    torch.testing.assert_close(weights.double(), wanted, rtol=2**-8, atol=1e-38)
    assert weights[3] == 0
    torch.testing.assert_close(totals.double(), 1 + wanted.view(4, LANES).sum(0), rtol=2e-4, atol=0)


def test_rows_in_pairs_and_scaled() -> None:
    @njit
    def pair(even, odd, to):
        interleave(even, odd, to)

    @njit
    def halve(source, to, factor):
        halve_vectors(source, to, factor)

    x = torch.randn(2, 2 * LANES, generator=torch.Generator().manual_seed(0))
    found = torch.zeros(2, 2 * LANES, dtype=torch.bfloat16)
    for source, to in zip(x, found, strict=True):
        halve(source.data_ptr(), to.data_ptr(), np.float32(3))
    assert torch.equal(found, (3 * x).bfloat16())
    pairs = torch.zeros(2 * LANES, 2, dtype=torch.bfloat16)
    pair(found[0].data_ptr(), found[1].data_ptr(), pairs.data_ptr())
    assert torch.equal(pairs, found.t())


def test_powers_of_two() -> None:
    @njit
    def all_powers(x, out):
        for i in range(len(x)):
            out[i] = coarse_power_of_two(x[i])

    x = np.linspace(-125.9, 0, 100_001, dtype=np.float32)
    found = np.empty_like(x)
    all_powers(x, found)
    np.testing.assert_allclose(found, np.exp2(x.astype(np.float64)), rtol=1e-4)
    low = np.array([-1e30, -1000.0, -127.0, -np.inf], np.float32)
    found = np.empty_like(low)
    all_powers(low, found)
    assert (found >= 0).all()
    assert (found < 2e-38).all()


@pytest.mark.parametrize("count", [1, 5, 4 * LANES - 1, 4 * LANES, 4 * LANES + 3, 600])
def test_the_extremes(count: int) -> None:
    @njit
    def call(address, count):
        return extremes(address, count)

    random = np.random.default_rng(count)
    for place in range(0, count, 1 + count // 9):
        x = random.standard_normal(count + 1).astype(np.float32)
        x[count] = 1e9
        x[place] *= 100
        assert call(x.ctypes.data, count) == (x[:count].min(), x[:count].max())


@pytest.mark.parametrize("vectors", [1, 2, 3, 4])
def test_the_greatest(vectors: int) -> None:
    find = greatest_of(vectors)

    @njit
    def call(address):
        return find(address)

    random = np.random.default_rng(vectors)
    for place in range(vectors * LANES):
        x = -np.abs(random.standard_normal(vectors * LANES + 2, np.float32)) - 1
        x[1 + place] = -0.5
        x[0] = x[-1] = 9  # beside it
        assert call(x.ctypes.data + 4) == np.float32(-0.5)
