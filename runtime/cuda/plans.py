"""Attention plans that stay where they are on the device, one for each size of a step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from branchline.kernels.triton.attention import TritonPlan

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from branchline.kernels.triton.tile_shapes import Heads
    from branchline.runtime.batch import Batch


class DevicePlan(Protocol):
    """A plan for attention on the device; the model's kernels read it."""

    def load(self, words: Tensor) -> None:
        """Take in the plan of another batch, int32 on the device, as its planner packed it."""

    def grow(self) -> None:
        """Make every row one position longer; for batches of decodes only."""


class Planner(Protocol):
    """Plans batches on the host."""

    def empty(self, tokens: int) -> DevicePlan:
        """A plan with room for any batch of up to `tokens` tokens."""

    def pack(self, batch: Batch, tokens: int) -> tuple[np.ndarray, int]:
        """The words of a batch's plan for `empty(tokens)`, and how often it may then grow."""


class TilePlanner:
    """Plans of work tiles. One step runs at a time, so plans of all sizes share their buffers."""

    def __init__(self, heads: Heads, page_table: Tensor, tokens: int) -> None:
        """For a model with these heads and steps of up to `tokens` tokens."""
        self._largest = TritonPlan.empty(heads, page_table, tokens)

    def empty(self, tokens: int) -> DevicePlan:
        """See `Planner.empty`."""
        return self._largest.at(tokens)

    def pack(self, batch: Batch, tokens: int) -> tuple[np.ndarray, int]:
        """See `Planner.pack`."""
        plan = self._largest.at(tokens)
        slots = [row.slot for row in batch.rows]
        host = plan.plan(batch.q_indptr, batch.kv_lens, slots, batch.segments)
        return host.pack(plan.capacity), host.steps
