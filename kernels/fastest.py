"""Which of the CPU's kernels serve a model: the compiled ones where they can."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

import torch

from branchline.kernels.cpu import cpu_kernels
from branchline.kernels.cpu_int8 import cpu_int8_kernels

if TYPE_CHECKING:
    from branchline.kernels.kernel_set import KernelSet


def fastest_cpu_kernels(head_dim: int, dtype: torch.dtype) -> KernelSet:
    """For a model with heads of this size, in float32 or bfloat16."""
    if dtype == torch.float32 and _compiles(head_dim):
        from branchline.kernels.jit.device import jit_kernels

        return jit_kernels()
    return cpu_kernels()


def fastest_int8_kernels(head_dim: int, inputs: tuple[int, ...]) -> KernelSet:
    """With linears in int8, each of whose numbers of inputs is one of `inputs`."""
    if _compiles(head_dim) and all(count % 4 == 0 for count in inputs):
        from branchline.kernels.jit.device import jit_int8_kernels
        from branchline.kernels.jit.product import HAS_BYTE_PRODUCTS, HAS_HALF_PRODUCTS
        from branchline.kernels.jit.vector import LANES

        if HAS_BYTE_PRODUCTS:
            return jit_int8_kernels(halves=HAS_HALF_PRODUCTS and head_dim % (2 * LANES) == 0)
    return cpu_int8_kernels()


def _compiles(head_dim: int) -> bool:
    """Whether there is a compiler here, a team to run on, and heads of whole vectors."""
    if importlib.util.find_spec("numba") is None:
        return False
    from branchline.kernels.jit.team import jit_is_available
    from branchline.kernels.jit.vector import LANES

    return jit_is_available() and head_dim % LANES == 0
