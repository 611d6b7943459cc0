"""The CPU's kernels: oneDNN and MKL for the linears, flash attention over gathered pages."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from branchline.kernels.cpu_attention import CpuPlan, attention
from branchline.kernels.kernel_set import KernelSet

if TYPE_CHECKING:
    from torch import Tensor

    from branchline.kernels.kernel_set import Linear


def cpu_kernels() -> KernelSet:
    """The fastest kernels that torch has for a CPU; float32 and bfloat16."""
    return KernelSet(
        name="cpu",
        device=torch.device("cpu"),
        linear=linear,
        rms_norm=rms_norm,
        add_rms_norm=add_rms_norm,
        rope_and_write=rope_and_write,
        silu_mul=silu_mul,
        plan=CpuPlan,
        attention=attention,
        segment_cost=512,
    )


def linear(weight: Tensor, bias: Tensor | None) -> Linear:
    """The function x -> x Wᵀ + b, from the weight in oneDNN's own layout where that is faster.

    The plain weight is kept only when few rows are faster without the layout.
    """
    plain: Linear = partial(functional.linear, weight=weight, bias=bias)
    if not _can_pack(weight):
        return plain
    packed_weight = torch.ops.mkldnn._reorder_linear_weight(weight, None)

    def packed(x: Tensor) -> Tensor:
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed_weight, bias, "none", [], "")
        return y

    first = _first_packed_rows()
    if first <= 1:
        return packed
    return lambda x: plain(x) if x.shape[0] < first else packed(x)


def _can_pack(weight: Tensor) -> bool:
    """Whether this torch has the prepacked linear for the weight's type."""
    mkldnn = torch.ops.mkldnn
    available: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    if not available or not hasattr(mkldnn, "_linear_pointwise"):
        return False
    if weight.dtype == torch.bfloat16:
        return bool(mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype == torch.float32


def _first_packed_rows() -> int:
    """The rows from which the prepacked linear is the faster one.

    MKL multiplies a few rows as fast as memory delivers the weight, but only on Intel's processors:
    on an AMD EPYC the prepacked linear is 1.7 times as fast for one row, 3 times for three.
    """
    has_mkl: bool = torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
    return 8 if has_mkl and is_intel() else 1


def is_intel() -> bool:
    """Whether the processor is known to be Intel's."""
    if not hasattr(torch.cpu, "get_capabilities"):
        return False
    return "Intel" in str(torch.cpu.get_capabilities().get("cpu_name"))


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Divide x by its root mean square along the last dimension, multiply by `weight`."""
    return functional.rms_norm(x, (x.shape[-1],), weight, eps)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The norm of x + residual, and the sum itself: the next residual."""
    total = x + residual
    return rms_norm(total, weight, eps), total


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
    """Rotate q and k by their positions, write k and v to their pages; the rotated q."""
    angles = cos_sin.index_select(0, positions).unsqueeze(1)  # [T, 1, D]
    k_pool.index_copy_(0, pages, _rotate(k, angles))
    v_pool.index_copy_(0, pages, v)
    return _rotate(q, angles)


def _rotate(x: Tensor, angles: Tensor) -> Tensor:
    cos, sin = angles.chunk(2, dim=-1)
    first, second = x.chunk(2, dim=-1)
    rotated = torch.cat(
        (
            torch.addcmul(first * cos, second, sin, value=-1),
            torch.addcmul(second * cos, first, sin),
        ),
        dim=-1,
    )
    return rotated.to(x.dtype)


def silu_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) · up, of a tensor that is gate, then up."""
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.silu(gate).mul_(up)
