"""SiLU of one half times the other."""

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

BLOCK = 1024  # elements of a program of WARPS warps: one 16-byte load of each half a thread
WARPS = 4

# What is compiled ahead of time: intermediate sizes of SmolLM2 and Llama 3 8B.
SIZES = ((1536, torch.bfloat16), (14336, torch.bfloat16), (14336, torch.float16))


@triton.jit
def silu_mul_kernel(gate_up, out, stride, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """A program has BLOCK elements (axis 1) of a token (axis 0)."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < SIZE
    source = gate_up + token * stride + column
    gate = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(source + SIZE, mask=inside, other=0.0).to(tl.float32)
    dtype = out.dtype.element_ty
    # Rounded before the product, as transformers does.
    activated = (gate * tl.sigmoid(gate)).to(dtype).to(tl.float32)
    tl.store(out + token * SIZE + column, (activated * up).to(dtype), mask=inside)


@lru_cache
def silu_mul_variant(size: int, dtype: torch.dtype) -> Variant:
    """The kernel for an intermediate size."""
    return Variant(
        name=f"silu_mul {type_name(dtype)} n{size}",
        kernel=silu_mul_kernel,
        types={"gate_up": pointer(dtype), "out": pointer(dtype), "stride": "i32"},
        constants={"SIZE": size, "BLOCK": BLOCK},
        aligned=frozenset({"stride"}),
        num_warps=WARPS,
        num_stages=1,
        wide_loads=2,
    )


def variants() -> list[Variant]:
    """What is compiled ahead of time."""
    return [silu_mul_variant(size, dtype) for size, dtype in SIZES]


def silu_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) · up [T, I], of gate, then up in rows [T, 2 · I]; I is a multiple of 8."""
    tokens, size = gate_up.shape[0], gate_up.shape[1] // 2
    assert gate_up.stride(1) == 1
    out = torch.empty((tokens, size), dtype=gate_up.dtype, device=gate_up.device)
    launch(
        silu_mul_variant(size, gate_up.dtype),
        (tokens, triton.cdiv(size, BLOCK)),
        gate_up=gate_up,
        out=out,
        stride=gate_up.stride(0),
    )
    return out
