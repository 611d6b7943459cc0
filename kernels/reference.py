"""The reference kernels: each operation as its formula, in plain torch, a row at a time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from branchline.kernels.kernel_set import KernelSet

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from branchline.kernels.kernel_set import Linear, Segment


def reference_kernels(device: torch.device | str = "cpu") -> KernelSet:
    """The kernels every other set is tested against; they run on any device and in any dtype."""
    return KernelSet(
        name="reference",
        device=torch.device(device),
        linear=linear,
        rms_norm=rms_norm,
        add_rms_norm=add_rms_norm,
        rope_and_write=rope_and_write,
        silu_mul=silu_mul,
        plan=ReferencePlan,
        attention=attention,
        segment_cost=0,
    )


def linear(weight: Tensor, bias: Tensor | None) -> Linear:
    """The function x -> x Wᵀ + b."""
    return partial(functional.linear, weight=weight, bias=bias)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Divide x by its root mean square along the last dimension, multiply by `weight`."""
    scale = torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + eps)
    return x * scale * weight


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
    angles = cos_sin[positions].unsqueeze(1)  # [T, 1, D]
    k_pool[pages] = rotate(k, angles)
    v_pool[pages] = v
    return rotate(q, angles)


def rotate(x: Tensor, angles: Tensor) -> Tensor:
    """Rotate the pairs (x[i], x[i + D / 2]) of every head; `angles` is cosines, then sines."""
    cos, sin = angles.chunk(2, dim=-1)
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def silu_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) · up, of a tensor that is gate, then up."""
    gate, up = gate_up.chunk(2, dim=-1)
    return gate * torch.sigmoid(gate) * up


@dataclass(frozen=True, slots=True)
class ReferencePlan:
    """The arguments of `plan`; what rows share, the reference reads once for each of them."""

    q_indptr: list[int]
    kv_lens: list[int]
    page_table: Tensor
    slots: list[int]
    segments: Sequence[Segment]


def attention(
    q: Tensor, k_pool: Tensor, v_pool: Tensor, plan: ReferencePlan, sm_scale: float
) -> Tensor:
    """softmax(q kᵀ · sm_scale) v of each row over its own pages; causal; grouped heads."""
    group = q.shape[1] // k_pool.shape[1]  # query heads to one K and V head
    out = torch.empty_like(q)
    for row, kv_len in enumerate(plan.kv_lens):
        start, end = plan.q_indptr[row], plan.q_indptr[row + 1]
        pages = plan.page_table[plan.slots[row], :kv_len]
        keys = k_pool[pages].repeat_interleave(group, dim=1)  # [T, H, D]
        values = v_pool[pages].repeat_interleave(group, dim=1)
        scores = torch.einsum("qhd,thd->hqt", q[start:end], keys) * sm_scale
        last = torch.arange(kv_len - (end - start), kv_len, device=q.device)  # each query's own
        future = torch.arange(kv_len, device=q.device) > last.unsqueeze(1)  # [n, T]
        weights = scores.masked_fill(future, float("-inf")).softmax(dim=-1)
        out[start:end] = torch.einsum("hqt,thd->qhd", weights, values)
    return out
