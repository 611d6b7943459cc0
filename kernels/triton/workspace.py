"""The device memory that the launches of one sampling step hand on to each other."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from branchline.kernels.triton.weights import LEVELS, MOST_BLOCKS, MOST_TOKENS


@dataclass(frozen=True, slots=True)
class Workspace:
    """What one launch leaves for the next one. At most R rows, B = MOST_BLOCKS."""

    peaks: Tensor  # float32 [R, B]: the highest score of each block
    peak_ids: Tensor  # int32 [R, B]: the first token that has it
    chances: Tensor  # int64 [R, B]: the mass of each block's tokens that min-p keeps
    counts: Tensor  # int32 [R, LEVELS, B]: tokens within each level
    masses: Tensor  # int64 [R, LEVELS, B]: their mass
    found: Tensor  # int32 [R]: tokens gathered
    totals: Tensor  # int64 [R]: the mass of all tokens
    distances: Tensor  # float32 [R * V]: theirs, each row from r * V on
    ids: Tensor  # int32 [R * V]

    @classmethod
    def empty(cls, rows: int, vocab: int, device: torch.device) -> Workspace:
        """For batches of up to `rows` rows of `vocab` scores."""
        assert vocab <= MOST_TOKENS, f"{vocab} tokens: the kernels sum up to {MOST_TOKENS}"

        def new(dtype: torch.dtype, *shape: int) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        levels = LEVELS.value
        return cls(
            peaks=new(torch.float32, rows, MOST_BLOCKS),
            peak_ids=new(torch.int32, rows, MOST_BLOCKS),
            chances=new(torch.int64, rows, MOST_BLOCKS),
            counts=new(torch.int32, rows, levels, MOST_BLOCKS),
            masses=new(torch.int64, rows, levels, MOST_BLOCKS),
            found=new(torch.int32, rows),
            totals=new(torch.int64, rows),
            distances=new(torch.float32, rows * vocab),
            ids=new(torch.int32, rows * vocab),
        )
