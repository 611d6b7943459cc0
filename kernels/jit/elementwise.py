"""What a layer does to each token between its products, compiled: norms, rotations, activation."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from branchline.kernels.jit.arena import empty
from branchline.kernels.jit.team import Kernel, bits
from branchline.kernels.jit.vector import (
    FAST,
    claim,
    exp,
    float_of_bits,
    floats,
    half_of,
    halves,
    words,
)

if TYPE_CHECKING:
    from torch import Tensor

_ZERO, _ONE = np.float32(0.0), np.float32(1.0)
# Rows that a thread takes at once.
_ROWS = 8


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Divide x by its root mean square along the last dimension, multiply by `weight`."""
    assert x.stride(-1) == 1
    size = x.shape[-1]
    together = 1 if x.dim() == 2 else x.shape[1]
    assert x.dim() == 2 or x.stride(1) == size
    normed = empty(*x.shape)
    _norm(
        x.data_ptr(),
        x.stride(0),
        0,
        weight.data_ptr(),
        normed.data_ptr(),
        0,
        len(x),
        together,
        size,
        bits(eps),
        work=2 * x.numel(),
    )
    return normed


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The norm of x + residual, and the sum itself: the next residual."""
    assert x.is_contiguous()
    assert residual.is_contiguous()
    count, size = x.shape
    normed, total = empty(count, size), empty(count, size)
    _norm(
        x.data_ptr(),
        size,
        residual.data_ptr(),
        weight.data_ptr(),
        normed.data_ptr(),
        total.data_ptr(),
        count,
        1,
        size,
        bits(eps),
        work=4 * x.numel(),
    )
    return normed, total


def rope_and_write(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos_sin: Tensor,
    positions: Tensor,
    pages: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
) -> Tensor:
    """Rotate q and k by their positions, write k and v to their pages; the rotated q.

    All float32, but the pools may be bfloat16.
    """
    count, heads, head_dim = q.shape
    rotated = empty(*q.shape)
    _rope(
        q.data_ptr(),
        q.stride(0),
        k.data_ptr(),
        k.stride(0),
        v.data_ptr(),
        v.stride(0),
        cos_sin.data_ptr(),
        positions.data_ptr(),
        pages.data_ptr(),
        k_pool.data_ptr(),
        v_pool.data_ptr(),
        rotated.data_ptr(),
        count,
        heads,
        k.shape[1],
        head_dim,
        k_pool.itemsize,
        work=3 * q.numel(),
    )
    return rotated


def gather(x: Tensor, rows: Tensor) -> Tensor:
    """The rows of x [N, K] whose numbers are in `rows`, int64 [M]: [M, K]."""
    assert x.is_contiguous()
    out = empty(len(rows), x.shape[1])
    _gather(
        x.data_ptr(), rows.data_ptr(), out.data_ptr(), len(rows), x.shape[1], work=2 * out.numel()
    )
    return out


def silu_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) · up, of a tensor that is gate, then up."""
    rows, both = gate_up.shape
    out = empty(rows, both // 2)
    _silu(gate_up.data_ptr(), out.data_ptr(), rows, both // 2, work=4 * out.numel())
    return out


@Kernel
def _norm(address):
    """Rows of `together` vectors each; with a residual it is added first, and the sum kept."""
    a = words(address, 12)
    rows, together, size = a[8], a[9], a[10]
    eps = float_of_bits(np.int32(a[11]))
    while True:
        first = claim(address) * _ROWS
        if first >= rows:
            break
        for row in range(first, min(rows, first + _ROWS)):
            offset = 4 * row * together * size
            source = a[2] + 4 * row * a[3]
            if a[4] != 0:
                _add(source, a[4] + offset, a[7] + offset, size)
                source = a[7] + offset
            for i in range(together):
                skip = 4 * i * size
                _norm_row(source + skip, a[5], a[6] + offset + skip, size, eps)


@njit(fastmath=FAST)
def _add(x_at, y_at, total_at, size):
    x, y, total = floats(x_at, size), floats(y_at, size), floats(total_at, size)
    for i in range(size):
        total[i] = x[i] + y[i]


@njit(fastmath=FAST)
def _norm_row(x_at, weight_at, normed_at, size, eps):
    x, weight, normed = floats(x_at, size), floats(weight_at, size), floats(normed_at, size)
    squares = _ZERO
    for i in range(size):
        squares += x[i] * x[i]
    scale = np.float32(_ONE / math.sqrt(squares / np.float32(size) + eps))
    for i in range(size):
        normed[i] = x[i] * scale * weight[i]


@Kernel
def _rope(address):
    """K and v are rounded to bfloat16 where the pools' numbers have 2 bytes."""
    a = words(address, 19)
    count, heads, kv_heads, head_dim, number = a[14], a[15], a[16], a[17], a[18]
    positions, pages = words(a[9], count), words(a[10], count)
    while True:
        first = claim(address) * _ROWS
        if first >= count:
            break
        for token in range(first, min(count, first + _ROWS)):
            angles = a[8] + 4 * positions[token] * head_dim
            q, k, v = a[2] + 4 * token * a[3], a[4] + 4 * token * a[5], a[6] + 4 * token * a[7]
            _rotate(q, angles, a[13] + 4 * token * heads * head_dim, heads, head_dim)
            page = number * pages[token] * kv_heads * head_dim
            if number == 4:
                _rotate(k, angles, a[11] + page, kv_heads, head_dim)
                _copy(v, a[12] + page, kv_heads * head_dim)
            else:
                _rotate_to_halves(k, angles, a[11] + page, kv_heads, head_dim)
                _round(v, a[12] + page, kv_heads * head_dim)


@njit(fastmath=FAST)
def _rotate_to_halves(x_at, angles_at, to_at, heads, head_dim):
    half = head_dim // 2
    cos, sin = floats(angles_at, half), floats(angles_at + 4 * half, half)
    for head in range(heads):
        offset = head * head_dim
        first, second = floats(x_at + 4 * offset, half), floats(x_at + 4 * (offset + half), half)
        to_first, to_second = (
            halves(to_at + 2 * offset, half),
            halves(to_at + 2 * (offset + half), half),
        )
        for i in range(half):
            to_first[i] = half_of(first[i] * cos[i] - second[i] * sin[i])
            to_second[i] = half_of(second[i] * cos[i] + first[i] * sin[i])


@njit
def _round(from_at, to_at, size):
    source, to = floats(from_at, size), halves(to_at, size)
    for i in range(size):
        to[i] = half_of(source[i])


@njit(fastmath=FAST)
def _rotate(x_at, angles_at, to_at, heads, head_dim):
    half = head_dim // 2
    cos, sin = floats(angles_at, half), floats(angles_at + 4 * half, half)
    for head in range(heads):
        offset = 4 * head * head_dim
        first, second = floats(x_at + offset, half), floats(x_at + offset + 4 * half, half)
        to_first, to_second = floats(to_at + offset, half), floats(to_at + offset + 4 * half, half)
        for i in range(half):
            to_first[i] = first[i] * cos[i] - second[i] * sin[i]
            to_second[i] = second[i] * cos[i] + first[i] * sin[i]


@njit
def _copy(from_at, to_at, size):
    source, to = floats(from_at, size), floats(to_at, size)
    for i in range(size):
        to[i] = source[i]


@Kernel
def _gather(address):
    a = words(address, 7)
    count, size = a[5], a[6]
    rows = words(a[3], count)
    while True:
        row = claim(address)
        if row >= count:
            break
        _copy(a[2] + 4 * rows[row] * size, a[4] + 4 * row * size, size)


@Kernel
def _silu(address):
    a = words(address, 6)
    rows, size = a[4], a[5]
    while True:
        row = claim(address)
        if row >= rows:
            break
        _silu_row(a[2] + 8 * row * size, a[3] + 4 * row * size, size)


@njit(fastmath=FAST, error_model="numpy")
def _silu_row(gate_up_at, out_at, size):
    gate, up, out = (
        floats(gate_up_at, size),
        floats(gate_up_at + 4 * size, size),
        floats(out_at, size),
    )
    for i in range(size):
        x = gate[i]
        out[i] = x / (_ONE + exp(-x)) * up[i]
