"""The kernels of the CUDA device as a `KernelSet`."""

from __future__ import annotations

import torch

from branchline.kernels.kernel_set import KernelSet
from branchline.kernels.reference import linear
from branchline.kernels.triton.activation import silu_mul
from branchline.kernels.triton.attention import SEGMENT_COST, BatchPlan, attention
from branchline.kernels.triton.launch import INTERPRETED
from branchline.kernels.triton.norm import add_rms_norm, rms_norm
from branchline.kernels.triton.rope import rope_and_write


def triton_kernels(device: torch.device | str = "cuda") -> KernelSet:
    """The kernels that run on a CUDA device, or under Triton's interpreter, then with "cpu".

    They compute in float32 whatever the weights, K and V are of: bfloat16, float16 or float32.
    Linears are cuBLAS's. Head sizes are powers of two; the other sizes of a model are multiples
    of 16.
    """
    where = torch.device(device)
    assert (where.type == "cpu") == INTERPRETED, f"{where}, TRITON_INTERPRET is {INTERPRETED}"
    return KernelSet(
        name="triton",
        device=where,
        linear=linear,
        rms_norm=rms_norm,
        add_rms_norm=add_rms_norm,
        rope_and_write=rope_and_write,
        silu_mul=silu_mul,
        plan=BatchPlan,
        attention=attention,
        segment_cost=SEGMENT_COST,
    )
