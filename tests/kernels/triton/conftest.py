"""Kernels run by Triton's interpreter on CPU tensors; with TRITON_INTERPRET=0 on a CUDA device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from branchline.kernels.triton.launch import INTERPRETED

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def device() -> Iterator[torch.device]:
    """Where tensors are made that name no device."""
    with torch.device("cpu" if INTERPRETED else "cuda") as where:
        yield where


@pytest.fixture(autouse=True)
def poisoned_memory() -> Iterator[None]:
    """Every tensor that is allocated and not yet written holds NaN: outputs above all."""
    assert torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(mode=True)
    yield
    torch.use_deterministic_algorithms(mode=False)
