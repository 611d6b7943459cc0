"""The calls of flash attention that a plan for the CPU consists of."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from branchline.kernels.kernel_set import Segment

# The result of a call: out [n, H, D], and on demand the log-sum-exp of its scores, float32 [n, H].
Part = tuple[Tensor, Callable[[], Tensor]]


@dataclass(frozen=True, slots=True)
class Call(ABC):
    """Some tokens' queries over the K and V of some pages."""

    tokens: slice | Tensor  # places in the batch of the n tokens whose result this is
    pages: slice | Tensor  # int64 [T]; a slice where they need no gathering

    @abstractmethod
    def attend(self, q: Tensor, keys: Tensor, values: Tensor, sm_scale: float) -> Part:
        """The part of the batch's queries q [tokens, H, D]; keys and values [T, Hkv, D]."""


@dataclass(frozen=True, slots=True)
class Shared(Call):
    """The queries of all members over a segment. None is masked."""

    @classmethod
    def of(
        cls, segment: Segment, q_indptr: list[int], page_table: Tensor, slots: list[int]
    ) -> Shared:
        """The call for one segment."""
        tokens = torch.cat([torch.arange(q_indptr[r], q_indptr[r + 1]) for r in segment.rows])
        pages = page_table[slots[segment.rows[0]], segment.start : segment.end]
        return cls(_compact(tokens), _compact(pages.long()))

    def attend(self, q: Tensor, keys: Tensor, values: Tensor, sm_scale: float) -> Part:
        """The query heads that share a K and V head take the place of queries: [1, Hkv, n·G, D]."""
        q = q[self.tokens]
        count, heads, head_dim = q.shape
        kv_heads = keys.shape[1]
        group = heads // kv_heads
        queries = q.view(count, kv_heads, group, head_dim).transpose(0, 1)
        queries = queries.reshape(1, kv_heads, count * group, head_dim)
        out, lse = _flash(queries, _one(keys), _one(values), sm_scale)
        out = out.view(kv_heads, count, group, head_dim).transpose(0, 1).reshape(q.shape)
        return out, lambda: lse.view(kv_heads, count, group).transpose(0, 1).flatten(1)


@dataclass(frozen=True, slots=True)
class Decodes(Call):
    """B rows with one query each, padded to T / B positions."""

    mask: Tensor | None  # float32 [B, 1, 1, T / B]: −inf on padding

    @classmethod
    def of(
        cls,
        rows: list[int],
        q_indptr: list[int],
        own_from: list[int],
        kv_lens: list[int],
        page_table: Tensor,
        slots: list[int],
    ) -> Decodes:
        """The call for the own parts of some rows."""
        tokens = _compact(torch.tensor([q_indptr[row] for row in rows]))
        pages, padding = _padded_pages(rows, own_from, kv_lens, page_table, slots)
        mask = _bias(padding).view(len(rows), 1, 1, -1) if padding.any() else None
        return cls(tokens, _compact(pages.flatten()), mask)

    def attend(self, q: Tensor, keys: Tensor, values: Tensor, sm_scale: float) -> Part:
        """The query heads that share a K and V head take the place of queries: [B, Hkv, G, D]."""
        q = q[self.tokens]
        rows, _, head_dim = q.shape
        kv_heads = keys.shape[1]
        keys = keys.view(rows, -1, kv_heads, head_dim).transpose(1, 2)  # [B, Hkv, T / B, D]
        values = values.view(rows, -1, kv_heads, head_dim).transpose(1, 2)
        queries = q.reshape(rows, kv_heads, -1, head_dim)
        out, lse = _flash(queries, keys, values, sm_scale, mask=self.mask)
        return out.reshape(q.shape), lambda: lse.flatten(1)


@dataclass(frozen=True, slots=True)
class Tails(Call):
    """B rows whose own part is their queries, padded at its end: what is causal needs no mask."""

    padded: Tensor  # int64 [B, T / B]: places in the batch, a row's first stands in for padding
    valid: Tensor  # int64 [n]: which of the padded ones are not

    @classmethod
    def of(
        cls,
        rows: list[int],
        q_indptr: list[int],
        own_from: list[int],
        kv_lens: list[int],
        page_table: Tensor,
        slots: list[int],
    ) -> Tails:
        """The call for the own parts of some rows."""
        pages, padding = _padded_pages(rows, own_from, kv_lens, page_table, slots)
        first = torch.tensor([q_indptr[row] for row in rows]).unsqueeze(1)
        padded = torch.where(padding, first, first + torch.arange(pages.shape[1]))
        valid = (~padding).flatten().nonzero()[:, 0]
        return cls(_compact(padded.flatten()[valid]), _compact(pages.flatten()), padded, valid)

    def attend(self, q: Tensor, keys: Tensor, values: Tensor, sm_scale: float) -> Part:
        """[B, H, T / B, D], grouped heads."""
        rows, _ = self.padded.shape
        queries = q[self.padded].transpose(1, 2)
        keys = keys.view(rows, -1, *keys.shape[1:]).transpose(1, 2)
        values = values.view(rows, -1, *values.shape[1:]).transpose(1, 2)
        out, lse = _flash(queries, keys, values, sm_scale, causal=True)
        out = out.transpose(1, 2).flatten(0, 1)[self.valid]
        return out, lambda: lse.transpose(1, 2).flatten(0, 1)[self.valid]


@dataclass(frozen=True, slots=True)
class Extend(Call):
    """One row with n queries, which are the last of its T positions."""

    mask: Tensor | None  # float32 [n, T]: −inf on what is later than the query; None: plain causal

    @classmethod
    def of(
        cls,
        row: int,
        q_indptr: list[int],
        own_from: list[int],
        kv_lens: list[int],
        page_table: Tensor,
        slots: list[int],
    ) -> Extend:
        """The call for the own part of one row."""
        tokens = slice(q_indptr[row], q_indptr[row + 1])
        count = tokens.stop - tokens.start
        positions = torch.arange(own_from[row], kv_lens[row])
        pages = _compact(page_table[slots[row], own_from[row] : kv_lens[row]].long())
        if count == len(positions):
            return cls(tokens, pages, None)
        return cls(tokens, pages, _bias(positions > positions[-count:].unsqueeze(1)))

    def attend(self, q: Tensor, keys: Tensor, values: Tensor, sm_scale: float) -> Part:
        """[1, H, n, D], grouped heads."""
        queries = _one(q[self.tokens])
        causal = self.mask is None
        out, lse = _flash(
            queries, _one(keys), _one(values), sm_scale, mask=self.mask, causal=causal
        )
        return out[0].transpose(0, 1), lse[0].t


def _flash(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    sm_scale: float,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
) -> tuple[Tensor, Tensor]:
    """Out [B, H, n, D] and the natural log-sum-exp [B, H, n]; heads may be grouped."""
    if mask is not None:
        mask = mask.to(q.dtype)
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q, keys, values, 0.0, causal, attn_mask=mask, scale=sm_scale
    )
    return out, lse


def _one(x: Tensor) -> Tensor:
    """[n, H, D] as a batch of one, heads first: [1, H, n, D]."""
    return x.transpose(0, 1).unsqueeze(0)


def _padded_pages(
    rows: list[int],
    own_from: list[int],
    kv_lens: list[int],
    page_table: Tensor,
    slots: list[int],
) -> tuple[Tensor, Tensor]:
    """The pages of some rows' own parts, int64 [B, longest], and where that is padding.

    A row's first page stands in for what is not its own: it may hold anything, even NaN.
    """
    first = torch.tensor([own_from[row] for row in rows]).unsqueeze(1)
    end = torch.tensor([kv_lens[row] for row in rows]).unsqueeze(1)
    positions = first + torch.arange(int((end - first).max()))
    padding = positions >= end
    positions = torch.where(padding, first, positions)
    of_rows = torch.tensor([slots[row] for row in rows]).unsqueeze(1)
    return page_table[of_rows, positions].long(), padding


def _compact(indices: Tensor) -> Tensor | slice:
    """The slice that selects the same as `indices` do, without a copy, if there is one."""
    first = int(indices[0])
    run = torch.arange(first, first + len(indices))
    return slice(first, first + len(indices)) if torch.equal(indices, run) else indices


def _bias(hidden: Tensor) -> Tensor:
    """What is added to attention's scores: −inf where `hidden`."""
    return torch.zeros(hidden.shape).masked_fill_(hidden, float("-inf"))
