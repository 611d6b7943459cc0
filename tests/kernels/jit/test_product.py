"""Products of small matrices against numpy."""

import numpy as np
import pytest
from numba import njit

from branchline.kernels.jit.product import (
    HAS_BYTE_PRODUCTS,
    multiply_bytes,
    multiply_floats,
    transpose,
)
from branchline.kernels.jit.vector import LANES, exp

SIZES = [(1, 1, 1), (6, 4, 7), (7, 5, 64), (3, 2, 9), (17, 1, 3), (4, 9, 16), (5, 4, 2)]


def place(x: np.ndarray) -> int:
    return x.ctypes.data


@njit
def call_floats(a, a_stride, b, b_stride, c, c_stride, rows, vectors, inner):
    multiply_floats(a, a_stride, b, b_stride, c, c_stride, rows, vectors, inner)


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


@pytest.mark.skipif(not HAS_BYTE_PRODUCTS, reason="the processor has no VNNI")
@pytest.mark.parametrize(("rows", "vectors", "inner"), SIZES)
def test_bytes(rows: int, vectors: int, inner: int) -> None:
    @njit
    def call_bytes(a, a_stride, b, b_stride, c, c_stride, rows, vectors, inner):
        multiply_bytes(a, a_stride, b, b_stride, c, c_stride, rows, vectors, inner)

    random = np.random.default_rng(rows)
    a = random.integers(0, 256, (rows, 4 * inner), np.uint8)
    b = random.integers(-128, 128, (4 * inner, vectors * LANES), np.int8)
    a[0], b[:, 0] = 255, -128  # the largest sums
    in_fours = np.ascontiguousarray(b.reshape(inner, 4, -1).transpose(0, 2, 1))
    c = random.integers(-9, 9, (rows, vectors * LANES), np.int32)
    wanted = c + a.astype(np.int32) @ b.astype(np.int32)
    call_bytes(
        place(a), a.strides[0], place(in_fours), 4 * vectors * LANES, place(c), c.strides[0], rows,
        vectors, inner,
    )  # fmt: skip
    np.testing.assert_array_equal(c, wanted)


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
