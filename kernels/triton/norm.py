"""RMSNorm, of rows or of the heads of each token, and its form that adds the residual first."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from branchline.kernels.triton.launch import launch
from branchline.kernels.triton.variant import Variant, pointer, type_name

if TYPE_CHECKING:
    from torch import Tensor

ELEMENTS = 8  # a thread: 16 bytes of bf16, one load
MOST_WARPS = 16
NARROW = 1024  # elements of a program that norms several short rows

# What is compiled ahead of time: the hidden sizes of SmolLM2 and Llama 3 8B, the heads of Qwen3.
SIZES = ((576, torch.bfloat16), (4096, torch.bfloat16), (4096, torch.float16))
HEAD_SIZES = ((128, torch.bfloat16), (128, torch.float16))


@triton.jit
def _normalise(x, weight, eps, dtype: tl.constexpr, SIZE: tl.constexpr):
    """The norm of float32 rows x [ROWS, BLOCK], zero beyond SIZE, times `weight`, of that shape.

    Rounded to `dtype` before the multiplication, which is what transformers does.
    """
    scale = tl.rsqrt(tl.sum(x * x, 1) / SIZE + eps)
    normed = (x * scale[:, None]).to(dtype).to(tl.float32)
    return (normed * weight.to(tl.float32)).to(dtype)


@triton.jit
def rms_norm_kernel(
    x,
    weight,
    out,
    rows,
    eps,
    token_stride,
    head_stride,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
):
    """A program norms ROWS rows; row r is head r % HEADS of token r // HEADS. `out` is dense."""
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    inside = (row < rows) & (column < SIZE)
    start = row // HEADS * token_stride + row % HEADS * head_stride
    values = tl.load(x + start + column, mask=inside, other=0.0).to(tl.float32)
    # Read once for each row, in the layout of the rows: wide loads, and no exchange of threads.
    weights = tl.load(weight + 0 * row + column, mask=inside, other=0.0)
    normed = _normalise(values, weights, eps, out.dtype.element_ty, SIZE)
    tl.store(out + row * SIZE + column, normed, mask=inside)


@triton.jit
def add_rms_norm_kernel(
    x,
    residual,
    weight,
    out,
    total,
    eps,
    x_stride,
    residual_stride,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A program sums and norms one row. The norm is that of the rounded sum: what is stored."""
    row = (tl.program_id(0).to(tl.int64) + tl.arange(0, 1))[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    inside = column < SIZE
    values = tl.load(x + row * x_stride + column, mask=inside, other=0.0).to(tl.float32)
    old = tl.load(residual + row * residual_stride + column, mask=inside, other=0.0)
    added = (values + old.to(tl.float32)).to(total.dtype.element_ty)
    tl.store(total + row * SIZE + column, added, mask=inside)
    weights = tl.load(weight + column, mask=inside, other=0.0)
    normed = _normalise(added.to(tl.float32), weights, eps, out.dtype.element_ty, SIZE)
    tl.store(out + row * SIZE + column, normed, mask=inside)


@lru_cache
def rms_norm_variant(size: int, heads: int, dtype: torch.dtype) -> Variant:
    """RMSNorm of `size` elements, of each of a token's `heads` heads (1: of the whole row)."""
    block = triton.next_power_of_2(size)
    rows = max(1, NARROW // block) if heads > 1 else 1
    element = pointer(dtype)
    return Variant(
        name=f"rms_norm {type_name(dtype)} h{heads} n{size}",
        kernel=rms_norm_kernel,
        types={
            "x": element,
            "weight": element,
            "out": element,
            "rows": "i32",
            "eps": "fp32",
            "token_stride": "i32",
            "head_stride": "i32",
        },
        constants={"HEADS": heads, "SIZE": size, "BLOCK": block, "ROWS": rows},
        aligned=frozenset({"token_stride", "head_stride"}),
        num_warps=_warps(block * rows),
        num_stages=1,
        wide_loads=2,
    )


@lru_cache
def add_rms_norm_variant(size: int, dtype: torch.dtype) -> Variant:
    """RMSNorm of the sum of two rows of `size` elements."""
    block = triton.next_power_of_2(size)
    names = ("x", "residual", "weight", "out", "total")
    types = dict.fromkeys(names, pointer(dtype))
    return Variant(
        name=f"add_rms_norm {type_name(dtype)} n{size}",
        kernel=add_rms_norm_kernel,
        types=types | {"eps": "fp32", "x_stride": "i32", "residual_stride": "i32"},
        constants={"SIZE": size, "BLOCK": block},
        aligned=frozenset({"x_stride", "residual_stride"}),
        num_warps=_warps(block),
        num_stages=1,
        wide_loads=3,
    )


def _warps(elements: int) -> int:
    """So many that each thread has one 16-byte load of a program's elements (a power of two)."""
    return max(1, min(MOST_WARPS, elements // (32 * ELEMENTS)))


def variants() -> list[Variant]:
    """What is compiled ahead of time."""
    rows = [rms_norm_variant(size, 1, dtype) for size, dtype in SIZES]
    heads = [rms_norm_variant(size, 8, dtype) for size, dtype in HEAD_SIZES]
    sums = [add_rms_norm_variant(size, dtype) for size, dtype in SIZES]
    return rows + heads + sums


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Divide x [T, N] or [T, H, D] by its root mean square along the last dimension; · weight.

    The last dimension is dense; the strides of the others are multiples of 16. The result is dense.
    """
    assert x.stride(-1) == 1
    assert weight.is_contiguous()
    heads, size = (1, *x.shape[1:]) if x.dim() == 2 else x.shape[1:]
    variant = rms_norm_variant(size, heads, x.dtype)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    rows = x.shape[0] * heads
    launch(
        variant,
        (triton.cdiv(rows, variant.constants["ROWS"]),),
        x=x,
        weight=weight,
        out=out,
        rows=rows,
        eps=eps,
        token_stride=x.stride(0),
        head_stride=x.stride(1) if heads > 1 else 0,
    )
    return out


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The norm of x + residual, both [T, N], and the sum: the next residual. Strides as above."""
    assert x.shape == residual.shape
    assert x.stride(1) == residual.stride(1) == 1
    assert weight.is_contiguous()
    normed = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    total = torch.empty_like(normed)
    launch(
        add_rms_norm_variant(x.shape[1], x.dtype),
        (x.shape[0],),
        x=x,
        residual=residual,
        weight=weight,
        out=normed,
        total=total,
        eps=eps,
        x_stride=x.stride(0),
        residual_stride=residual.stride(0),
    )
    return normed, total
