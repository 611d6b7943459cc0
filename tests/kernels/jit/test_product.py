"""Products of small matrices against numpy."""

import numpy as np
import pytest
from numba import njit

from branchline.kernels.jit.product import (
    BLOCK_VECTORS,
    HAS_BYTE_PRODUCTS,
    PANEL,
    multiply_bytes_panel,
    multiply_floats,
    multiply_floats_panel,
)
from branchline.kernels.jit.vector import LANES, exp, transpose

SIZES = [(1, 1, 1), (6, 4, 7), (7, 5, 64), (3, 2, 9), (17, 1, 3), (4, 9, 16), (5, 4, 2)]


def place(x: np.ndarray) -> int:
    return x.ctypes.data


@njit
def call_floats(a, a_stride, b, b_stride, c, c_stride, rows, vectors, inner):
    multiply_floats(a, a_stride, b, b_stride, c, c_stride, rows, vectors, inner, c, c_stride)


@pytest.mark.parametrize(("rows", "vectors", "inner"), SIZES)
def test_floats(rows: int, vectors: int, inner: int) -> None:
    random = np.random.default_rng(rows)
    a = random.standard_normal((rows, inner + 3), np.float32)  # rows are further apart than long
    b = random.standard_normal((inner, vectors * LANES + 5), np.float32)
    c = random.standard_normal((rows + 1, vectors * LANES + 1), np.float32)
    wanted = c.copy()
    wanted[:rows, :-1] += a[:, :inner] @ b[:, : vectors * LANES]
    call_floats(
        place(a), a.strides[0], place(b), b.strides[0], place(c), c.strides[0], rows, vectors, inner
    )
    np.testing.assert_allclose(c, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("vectors", [1, BLOCK_VECTORS])
@pytest.mark.parametrize(("rows", "inner"), [(1, 1), (3, 9), (6, 7), (7, 64), (17, 3), (11, 5)])
def test_panels_of_floats(rows: int, inner: int, vectors: int) -> None:
    @njit
    def call(a, a_stride, b, c, c_stride, rows, vectors, inner, base, ahead):
        multiply_floats_panel(
            a, a_stride, b, c, c_stride, rows, vectors, inner, base, 0, ahead, 0, 0
        )

    random = np.random.default_rng(rows)
    a = random.standard_normal((rows, inner), np.float32)
    b = random.standard_normal((inner, PANEL), np.float32)
    base = random.standard_normal(PANEL, np.float32)
    columns = vectors * LANES
    c = np.full((rows, columns + 1), 7, np.float32)
    call(
        place(a), a.strides[0], place(b), place(c), c.strides[0], rows, vectors, inner,
        place(base), place(b),
    )  # fmt: skip
    np.testing.assert_allclose(c[:, :-1], (base + a @ b)[:, :columns], rtol=1e-5, atol=1e-5)
    assert (c[:, -1] == 7).all()


@pytest.mark.skipif(not HAS_BYTE_PRODUCTS, reason="the processor has no VNNI")
@pytest.mark.parametrize("vectors", [1, BLOCK_VECTORS])
@pytest.mark.parametrize(("rows", "inner"), [(1, 1), (3, 9), (6, 7), (7, 64), (17, 3), (11, 5)])
def test_panels_of_bytes(rows: int, inner: int, vectors: int) -> None:
    @njit
    def call(a, a_stride, b, c, c_stride, rows, vectors, inner, base, ahead, frame, tokens):
        multiply_bytes_panel(
            a, a_stride, b, c, c_stride, rows, vectors, inner, base, c_stride, ahead, frame, tokens
        )

    random = np.random.default_rng(rows)
    a = random.integers(0, 256, (rows, 4 * inner), np.uint8)
    b = random.integers(-128, 128, (4 * inner, PANEL), np.int8)
    a[0], b[:, 0] = 255, -128  # the largest sums
    in_fours = np.ascontiguousarray(b.reshape(inner, 4, PANEL).transpose(0, 2, 1))
    start = random.integers(-(2**20), 2**20, PANEL, np.int32)
    column_scales, shifts = random.standard_normal((2, PANEL)).astype(np.float32)
    frame = np.stack([start, column_scales.view(np.int32), shifts.view(np.int32)])
    tokens = random.standard_normal((rows, 2)).astype(np.float32)
    columns = vectors * LANES
    base = random.standard_normal((rows, columns)).astype(np.float32)
    sums = start + a.astype(np.int64) @ b.astype(np.int64)
    exact = sums * column_scales.astype(np.float64) * tokens[:, :1] + shifts * tokens[:, 1:]
    c = np.zeros((rows, columns), np.float32)
    call(
        place(a), a.strides[0], place(in_fours), place(c), c.strides[0], rows, vectors, inner,
        place(base), place(in_fours), place(frame), place(tokens),
    )  # fmt: skip
    np.testing.assert_allclose(c, base + exact[:, :columns], rtol=1e-6, atol=1e-4)


def test_transpose() -> None:
    @njit
    def call(rows, byte, to, stride):
        transpose(rows, byte, to, stride)

    x = np.arange(40 * 50, dtype=np.float32).reshape(40, 50)
    chosen = np.random.default_rng(0).permutation(40)[:LANES]
    addresses = place(x) + chosen * x.strides[0]
    to = np.zeros((LANES, LANES + 2), np.float32)
    call(place(addresses), 4 * 7, place(to), to.strides[0])
    np.testing.assert_array_equal(to[:, :LANES], x[chosen, 7 : 7 + LANES].T)
    assert not to[:, LANES:].any()


def test_exp() -> None:
    @njit
    def all_exp(x, out):
        for i in range(len(x)):
            out[i] = exp(x[i])

    x = np.linspace(-86, 86, 100_001, dtype=np.float32)
    found = np.empty_like(x)
    all_exp(x, found)
    np.testing.assert_allclose(found, np.exp(x.astype(np.float64)), rtol=3e-7)
    low = np.array([-1e30, -1000.0, -87.5, -np.inf], np.float32)
    found = np.empty_like(low)
    all_exp(low, found)
    assert (found < 1e-37).all()
    assert (found >= 0).all()
    high = np.array([88.0, 88.8, 1000.0, 1e30, np.inf], np.float32)
    found = np.empty_like(high)
    all_exp(high, found)
    assert (found > 1.6e38).all()
    assert np.isfinite(found).all()
