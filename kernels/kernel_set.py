"""The operations a model needs of a device, as one frozen record chosen once per device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# x [T, in] -> [T, out]; holds its weight in whatever form the device likes.
Linear = Callable[[Tensor], Tensor]
# (tensors, plan) -> result
Compute = Callable[[tuple[Tensor, ...], Any], Tensor]
# (compute, tensors, plan) -> result
Run = Callable[[Compute, tuple[Tensor, ...], Any], Tensor]


@dataclass(frozen=True, slots=True)
class Segment:
    """Positions [start, end) that some rows of a batch share page for page.

    The segments of a row follow each other from position 0 without a gap, and its queries come
    after them, so no query of a row is masked in a segment. A list of segments is in the order root
    to leaf. (Cascade attention, as in FlashInfer and Hydragen, over any subgroup of the rows.)
    """

    start: int
    end: int
    rows: tuple[int, ...]  # at least 2, ascending; the pages are those of the first


def _gather(x: Tensor, rows: Tensor) -> Tensor:
    return x[rows]


def _run(compute: Compute, tensors: tuple[Tensor, ...], plan: Any) -> Tensor:
    return compute(tensors, plan)


@dataclass(frozen=True, slots=True)
class KernelSet:
    """Every device operation. T tokens, R rows (requests) of a batch, H heads, D head size.

    K and V live in a pool per layer, NHD: `[pages, kv_heads, head_dim]`, of `kv_dtype`.
    """

    name: str
    device: torch.device
    # (weight [out, in], bias [out] or None) -> Linear
    linear: Callable[[Tensor, Tensor | None], Linear]
    # (x [T, N], weight [N], eps) -> normed [T, N]; also per head with x [T, H, D], weight [D]
    rms_norm: Callable[[Tensor, Tensor, float], Tensor]
    # (x [T, N], residual [T, N], weight [N], eps) -> (normed, x + residual)
    add_rms_norm: Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]]
    # (q [T, H, D], k [T, Hkv, D], v [T, Hkv, D], cos_sin [max_position, D], positions [T],
    # pages [T], k_pool, v_pool) -> rotated q; k (rotated) and v are written to `pages` of the pools
    rope_and_write: Callable[
        [Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], Tensor
    ]
    # (gate_up [T, 2 * I]) -> silu(gate) * up [T, I]
    silu_mul: Callable[[Tensor], Tensor]
    # (q_indptr [R + 1], kv_lens [R], page_table int32 or int64 [slots, >= max(kv_lens)], slots [R],
    # segments) -> plan, for all layers of one batch; the queries of row r are its last
    # q_indptr[r + 1] - q_indptr[r] positions, and page_table[slots[r]] has the pages of them all
    plan: Callable[[list[int], list[int], Tensor, list[int], Sequence[Segment]], Any]
    # (q [T, H, D], k_pool, v_pool, plan, sm_scale) -> out [T, H, D]; causal
    attention: Callable[[Tensor, Tensor, Tensor, Any, float], Tensor]
    # Reads of one position that cost as much as one segment more: a segment must save that many.
    segment_cost: int
    kv_dtype: torch.dtype | None = None  # None: the model's
    # (x [N, K], rows int64 [M]) -> [M, K]
    gather: Callable[[Tensor, Tensor], Tensor] = _gather
    # What `gated_linear` is, where the device has something better than its parts.
    fused_gated_linear: Callable[[Tensor, Tensor | None], Linear] | None = None
    # () -> a function that gives compute(tensors, plan), for one `compute` that always reads the
    # same memory. It may record and then replay it instead of calling it: so of what kernels return
    # `compute` takes only views. The next run may overwrite the result.
    make_run: Callable[[], Run] = lambda: _run
    # (shape, dtype=, device=) -> zeros, for what is large and stays
    zeros: Callable[..., Tensor] = torch.zeros

    def gated_linear(self, weight: Tensor, bias: Tensor | None) -> Linear:
        """The function x -> silu(gate) * up [T, I], for a weight [2 * I, in]: gate's, then up's."""
        if self.fused_gated_linear is not None:
            return self.fused_gated_linear(weight, bias)
        gate_up, silu_mul = self.linear(weight, bias), self.silu_mul
        return lambda x: silu_mul(gate_up(x))
