"""Attention on a CPU: flash attention over K and V gathered from their pages.

What several rows share is read once for all their queries (`Shared`). What a row has for itself
is read by rows of about one length together: one query each (`Decodes`), or a short run of queries
that begins where the row's own part does (`Tails`); any other row has a call of its own (`Extend`).
The parts of a query are merged by their log-sum-exp, from its own part towards the root.

Gathered K and V go to a buffer that all layers of a batch reuse: fresh memory for each would cost
more in page faults than the gather.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from branchline.kernels.cpu_calls import Call, Decodes, Extend, Shared, Tails

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from branchline.kernels.kernel_set import Segment

# Positions gathered for one call: so few that K and V are still in the cache when it reads them.
_GATHER = 4096
# Positions of padding that are cheaper than one more call.
_PADDING = 256
# The queries of a row up to which it shares a call with others.
_SHORT = 128


class CpuPlan:
    """The calls that one batch's attention takes, the same in all layers."""

    def __init__(
        self,
        q_indptr: list[int],
        kv_lens: list[int],
        page_table: Tensor,
        slots: list[int],
        segments: Sequence[Segment],
    ) -> None:
        """See `KernelSet.plan`."""
        own_from = [0] * len(kv_lens)
        for segment in segments:
            for row in segment.rows:
                own_from[row] = segment.end
        queries = [end - start for start, end in itertools.pairwise(q_indptr)]
        decodes, tails, extends = [], [], []
        for row, count in enumerate(queries):
            if count == 1:
                decodes.append(row)
            elif count <= _SHORT and kv_lens[row] - count == own_from[row]:
                tails.append(row)
            else:
                extends.append(row)
        length = [end - start for start, end in zip(own_from, kv_lens, strict=True)]
        arguments = (q_indptr, own_from, kv_lens, page_table, slots)
        self.own: list[Call] = [
            *(Decodes.of(group, *arguments) for group in _groups(decodes, length.__getitem__)),
            *(Tails.of(group, *arguments) for group in _groups(tails, length.__getitem__)),
            *(Extend.of(row, *arguments) for row in extends),
        ]
        self.shared = [Shared.of(s, q_indptr, page_table, slots) for s in reversed(segments)]
        self._buffers: tuple[Tensor, Tensor] | None = None

    def gather(
        self, pages: Tensor | slice, k_pool: Tensor, v_pool: Tensor
    ) -> tuple[Tensor, Tensor]:
        """K and V of `pages`, each [T, Hkv, D]; valid until the next call."""
        if isinstance(pages, slice):
            return k_pool[pages], v_pool[pages]
        if self._buffers is None:
            calls: list[Call] = [*self.own, *self.shared]
            size = max(len(call.pages) for call in calls if isinstance(call.pages, Tensor))
            shape = (size, *k_pool.shape[1:])
            self._buffers = k_pool.new_empty(shape), v_pool.new_empty(shape)
        keys, values = (buffer[: len(pages)] for buffer in self._buffers)
        torch.index_select(k_pool, 0, pages, out=keys)
        torch.index_select(v_pool, 0, pages, out=values)
        return keys, values


def attention(q: Tensor, k_pool: Tensor, v_pool: Tensor, plan: CpuPlan, sm_scale: float) -> Tensor:
    """softmax(q kᵀ · sm_scale) v of each row over its own pages; causal; grouped heads."""
    out = torch.empty_like(q)
    lse = q.new_empty(q.shape[:2], dtype=torch.float32) if plan.shared else None  # [T, H]
    for call in plan.own:
        part, part_lse = call.attend(q, *plan.gather(call.pages, k_pool, v_pool), sm_scale)
        out[call.tokens] = part
        if lse is not None:
            lse[call.tokens] = part_lse()
    for call in plan.shared:
        part, part_lse = call.attend(q, *plan.gather(call.pages, k_pool, v_pool), sm_scale)
        assert lse is not None
        _merge(out, lse, call.tokens, part, part_lse())
    return out


def _merge(
    out: Tensor, lse: Tensor, tokens: Tensor | slice, part: Tensor, part_lse: Tensor
) -> None:
    """Add a part to the results of `tokens`: exact, for softmax over a union of keys."""
    weight = torch.sigmoid(part_lse - lse[tokens]).unsqueeze(-1).to(out.dtype)  # [n, H, 1]
    out[tokens] = torch.lerp(out[tokens], part, weight)
    lse[tokens] = torch.logaddexp(lse[tokens], part_lse)


def _groups(rows: list[int], length: Callable[[int], int]) -> Iterator[list[int]]:
    """Share rows out into groups of about one length, each in ascending order."""
    order = sorted(rows, key=length, reverse=True)
    while order:
        longest = length(order[0])
        fitting = order[: max(1, _GATHER // longest)]
        count = sum(longest - length(row) <= _PADDING for row in fitting)
        yield sorted(order[:count])
        order = order[count:]
