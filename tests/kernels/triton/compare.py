"""How a kernel's result is compared with the right answer."""

from __future__ import annotations

import torch
from torch import Tensor

# Of ‖found - wanted‖ / ‖wanted‖, where `wanted` is float64: roundings of the result and, where
# transformers rounds in between, of that. The interpreter cuts bfloat16 off where a device rounds.
TOLERANCE = {torch.float32: 1e-6, torch.float16: 5e-4, torch.bfloat16: 1e-2}


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Normal numbers, the same for the same seed; rounded to `dtype`."""
    generator = torch.Generator("cpu").manual_seed(seed)
    numbers = torch.randn(shape, generator=generator, device="cpu").to(dtype)
    return numbers.to(torch.get_default_device())


def error(found: Tensor, wanted: Tensor) -> float:
    """‖found - wanted‖ / ‖wanted‖; NaN where anything found is."""
    assert wanted.dtype == torch.float64
    assert found.shape == wanted.shape
    return float((found.double() - wanted).norm() / wanted.norm())


def assert_close(found: Tensor, wanted: Tensor) -> None:
    """`found` equals the float64 `wanted` as well as its type allows."""
    assert error(found, wanted) < TOLERANCE[found.dtype]
