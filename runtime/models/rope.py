"""Rotary position embedding: the frequencies of its kinds, and the table the kernels read."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """How positions become angles. What only one kind needs keeps its default in the others."""

    theta: float
    kind: Literal["default", "linear", "llama3"] = "default"
    factor: float = 1.0  # linear, llama3: how much longer the context became
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    original_context: int = 8192  # llama3: the context before it became longer
    divisors: tuple[float, ...] = ()  # of each frequency, where a GGUF file lists them


def frequencies(rope: RopeConfig, head_dim: int) -> Tensor:
    """The angle that one position adds to each pair of a head's dimensions, float32 [D / 2]."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    base = 1.0 / (rope.theta**exponents)
    if rope.divisors:
        base = base / torch.tensor(rope.divisors, dtype=torch.float32)
    if rope.kind == "linear":
        return base / rope.factor
    if rope.kind == "llama3":
        return _llama3(base, rope)
    return base


def _llama3(base: Tensor, rope: RopeConfig) -> Tensor:
    """Llama 3.1's rule: slow frequencies divided by the factor, fast ones kept, smooth between."""
    wavelength = 2 * math.pi / base
    turns = rope.original_context / wavelength  # in the original context
    kept = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    kept = kept.clamp(0.0, 1.0)
    return (1 - kept) * base / rope.factor + kept * base


def cos_sin_table(rope: RopeConfig, head_dim: int, positions: int) -> Tensor:
    """Cosines, then sines, of every position's angles: float32 [positions, D]."""
    steps = torch.arange(positions, dtype=torch.float32)
    angles = torch.outer(steps, frequencies(rope, head_dim))
    return torch.cat((angles.cos(), angles.sin()), dim=-1)
