"""The compiled kernels of a CPU as kernel sets."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch

from branchline.kernels.cpu import cpu_kernels
from branchline.kernels.jit import attention, elementwise, linear
from branchline.kernels.jit.memory import zeros
from branchline.kernels.jit.replay import Replay
from branchline.kernels.jit.team import Kernel

if TYPE_CHECKING:
    from branchline.kernels.kernel_set import KernelSet


def jit_kernels() -> KernelSet:
    """All kernels compiled, which takes seconds the first time; float32, heads of whole vectors."""
    _compile()
    return replace(
        cpu_kernels(),
        name="cpu-jit",
        linear=linear.linear,
        fused_gated_linear=partial(linear.linear, gated=True),
        rms_norm=elementwise.rms_norm,
        add_rms_norm=elementwise.add_rms_norm,
        rope_and_write=elementwise.rope_and_write,
        silu_mul=elementwise.silu_mul,
        gather=elementwise.gather,
        plan=attention.TilePlan,
        attention=attention.attention,
        segment_cost=128,
        make_run=lambda: Replay().run,
        zeros=zeros,
    )


def jit_int8_kernels(*, halves: bool) -> KernelSet:
    """`jit_kernels`, but with linears that compute in int8; their inputs come in fours.

    Args:
        halves: K and V are kept, and attention's products computed, in bfloat16. Needs
            `product.HAS_HALF_PRODUCTS`, and heads of whole vectors of pairs.
    """
    kernels = replace(
        jit_kernels(),
        name="cpu-jit-int8",
        linear=linear.int8_linear,
        fused_gated_linear=partial(linear.int8_linear, gated=True),
    )
    if not halves:
        return kernels
    from branchline.kernels.jit import attention_halves

    _compile()
    return replace(kernels, attention=attention_halves.attention, kv_dtype=torch.bfloat16)


def _compile() -> None:
    for kernel in Kernel.known:
        assert kernel.address
