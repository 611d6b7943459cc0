"""Attention on a CPU: flash attention over K and V gathered from their pages.

A row with one query (a decode) shares one call with rows of about its length, padded to the longest
of them. A row with more (an extend) is one call of its own. Gathered K and V go to a buffer that
all layers of a batch reuse: fresh memory for each would cost more in page faults than the gather.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

if TYPE_CHECKING:
    from collections.abc import Iterator

# Positions gathered for one call: so few that K and V are still in the cache when it reads them.
_GATHER = 4096
# Positions of padding that are cheaper than one more call.
_PADDING = 256


class CpuPlan:
    """The calls that one batch's attention takes, the same in all layers."""

    def __init__(self, q_indptr: list[int], kv_lens: list[int], page_rows: Tensor) -> None:
        """See `KernelSet.plan`."""
        rows = range(len(kv_lens))
        decodes = [row for row in rows if q_indptr[row + 1] - q_indptr[row] == 1]
        groups = _groups(decodes, kv_lens)
        self.calls: list[_Decodes | _Extend] = [
            _Decodes.of(group, q_indptr, kv_lens, page_rows) for group in groups
        ]
        self.calls += [
            _Extend.of(q_indptr[row], q_indptr[row + 1], page_rows[row, : kv_lens[row]])
            for row in rows
            if q_indptr[row + 1] - q_indptr[row] > 1
        ]
        self._buffers: tuple[Tensor, Tensor] | None = None

    def gather(
        self, pages: Tensor | slice, k_pool: Tensor, v_pool: Tensor
    ) -> tuple[Tensor, Tensor]:
        """K and V of `pages`, each [T, Hkv, D]; valid until the next call."""
        if isinstance(pages, slice):
            return k_pool[pages], v_pool[pages]
        if self._buffers is None:
            size = max(len(call.pages) for call in self.calls if isinstance(call.pages, Tensor))
            shape = (size, *k_pool.shape[1:])
            self._buffers = k_pool.new_empty(shape), v_pool.new_empty(shape)
        keys, values = (buffer[: len(pages)] for buffer in self._buffers)
        torch.index_select(k_pool, 0, pages, out=keys)
        torch.index_select(v_pool, 0, pages, out=values)
        return keys, values


def attention(q: Tensor, k_pool: Tensor, v_pool: Tensor, plan: CpuPlan, sm_scale: float) -> Tensor:
    """softmax(q kᵀ · sm_scale) v of each row over its own pages; causal; grouped heads."""
    out = q.new_empty(q.shape)
    for call in plan.calls:
        keys, values = plan.gather(call.pages, k_pool, v_pool)
        out[call.tokens] = call.attend(q[call.tokens], keys, values, sm_scale)
    return out


@dataclass(frozen=True, slots=True)
class _Decodes:
    """B rows with one query each, padded to T positions."""

    tokens: slice | Tensor  # the rows' places in the batch
    pages: slice | Tensor  # int64 [B * T], row after row; a slice where they need no gathering
    mask: Tensor | None  # float32 [B, 1, 1, T]: −inf on padding

    @classmethod
    def of(
        cls, rows: list[int], q_indptr: list[int], kv_lens: list[int], page_rows: Tensor
    ) -> _Decodes:
        lengths = [kv_lens[row] for row in rows]
        longest = max(lengths)
        tokens = _compact(torch.tensor([q_indptr[row] for row in rows]))
        pages = page_rows[_compact(torch.tensor(rows)), :longest]
        if min(lengths) == longest:
            return cls(tokens, _compact(pages.flatten()), None)
        padding = torch.arange(longest) >= torch.tensor(lengths).unsqueeze(1)  # [B, T]
        # A row's first page stands in for what is not its own: it may hold anything, even NaN.
        pages = torch.where(padding, pages[:, :1], pages)
        return cls(tokens, pages.flatten(), _bias(padding).view(len(rows), 1, 1, longest))

    def attend(self, q: Tensor, keys: Tensor, values: Tensor, sm_scale: float) -> Tensor:
        """[B, H, D]. The query heads that share a K and V head take the place of queries."""
        rows, _, head_dim = q.shape
        kv_heads = keys.shape[1]
        keys = keys.view(rows, -1, kv_heads, head_dim).transpose(1, 2)  # [B, Hkv, T, D]
        values = values.view(rows, -1, kv_heads, head_dim).transpose(1, 2)
        queries = q.reshape(rows, kv_heads, -1, head_dim)  # [B, Hkv, G, D]
        result = scaled_dot_product_attention(
            queries, keys, values, attn_mask=self.mask, scale=sm_scale
        )
        return result.reshape(q.shape)


@dataclass(frozen=True, slots=True)
class _Extend:
    """One row with n queries, which are the last of its T positions."""

    tokens: slice
    pages: slice | Tensor  # int64 [T]
    mask: Tensor  # float32 [n, T]: −inf on what is later than the query

    @classmethod
    def of(cls, start: int, end: int, pages: Tensor) -> _Extend:
        positions = torch.arange(len(pages))
        future = positions > positions[start - end :].unsqueeze(1)
        return cls(slice(start, end), _compact(pages), _bias(future))

    def attend(self, q: Tensor, keys: Tensor, values: Tensor, sm_scale: float) -> Tensor:
        """[n, H, D]."""
        q, keys, values = (x.transpose(0, 1).unsqueeze(0) for x in (q, keys, values))
        result = scaled_dot_product_attention(
            q, keys, values, attn_mask=self.mask, scale=sm_scale, enable_gqa=True
        )
        return result.squeeze(0).transpose(0, 1)


def _groups(rows: list[int], kv_lens: list[int]) -> Iterator[list[int]]:
    """Share rows out into groups of about one length, each in ascending order."""
    order = sorted(rows, key=kv_lens.__getitem__, reverse=True)
    while order:
        longest = kv_lens[order[0]]
        fitting = order[: max(1, _GATHER // longest)]
        count = sum(longest - kv_lens[row] <= _PADDING for row in fitting)
        yield sorted(order[:count])
        order = order[count:]


def _compact(indices: Tensor) -> Tensor | slice:
    """The slice that selects the same as `indices` do, without a copy, if there is one."""
    first = int(indices[0])
    run = torch.arange(first, first + len(indices))
    return slice(first, first + len(indices)) if torch.equal(indices, run) else indices


def _bias(hidden: Tensor) -> Tensor:
    """What is added to attention's scores: −inf where `hidden`."""
    return torch.zeros(hidden.shape).masked_fill_(hidden, float("-inf"))
