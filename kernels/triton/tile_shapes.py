"""The sizes that the planner of tiles and the kernels that read its plan agree on."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from branchline.kernels.triton.variant import type_name

NARROW, WIDE = 16, 64  # rows of a tile: query heads of one head of K and V, times queries
LONG = 128  # new tokens from which a row is a long extend, with a kernel of its own
ANYWHERE = 2**30  # the position of a query that sees every position of its tile


@dataclass(frozen=True, slots=True)
class Heads:
    """The heads of a model, which kernels are compiled for."""

    kv_heads: int
    group: int  # query heads to one head of K and V
    size: int  # a power of two from 16 on
    dtype: torch.dtype  # of q, K, V and out

    @property
    def name(self) -> str:
        """For people, and for kernels to be told apart by."""
        return f"{type_name(self.dtype)} h{self.kv_heads * self.group}/{self.kv_heads} d{self.size}"

    @property
    def padded_group(self) -> int:
        """The rows that a query takes in a tile: the power of two from `group` on."""
        return 1 << (self.group - 1).bit_length()


# What attention is compiled for ahead of time: the sizes of Llama 3 8B, SmolLM2 and Gemma 2B …
SIZES = (
    Heads(kv_heads=8, group=4, size=128, dtype=torch.bfloat16),
    Heads(kv_heads=8, group=4, size=128, dtype=torch.float16),
    Heads(kv_heads=3, group=3, size=64, dtype=torch.bfloat16),
    Heads(kv_heads=1, group=8, size=256, dtype=torch.bfloat16),
)
# … and tiles for the groups of Qwen2 7B and Llama 2 7B too.
GROUPS = (
    Heads(kv_heads=4, group=7, size=128, dtype=torch.bfloat16),
    Heads(kv_heads=32, group=1, size=128, dtype=torch.bfloat16),
)


@dataclass(frozen=True, slots=True)
class Geometry:
    """What a plan has to know of a model and a device."""

    kv_heads: int
    padded_group: int  # rows that a query takes in a tile
    narrow_programs: int  # programs that the device runs at once
    wide_programs: int
    long_block: int  # queries of a block of a long extend
