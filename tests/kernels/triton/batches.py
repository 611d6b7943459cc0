"""Batches over pages: random ones, their pools, and the right answer in float64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from branchline.kernels import Segment
from branchline.kernels.triton.attention import BatchPlan, attention

from .compare import random

if TYPE_CHECKING:
    from branchline.kernels.triton.tile_shapes import Heads


@dataclass(frozen=True)
class Rows:
    """The arguments of a plan, without a page table."""

    queries: tuple[int, ...]
    kv_lens: tuple[int, ...]
    segments: tuple[Segment, ...] = ()

    @property
    def q_indptr(self) -> list[int]:
        return [0, *np.cumsum(self.queries).tolist()]

    @property
    def slots(self) -> list[int]:
        """In reverse order, with others between."""
        return [2 * row + 1 for row in range(len(self.queries))][::-1]

    def page_table(self, order: list[int]) -> np.ndarray:
        """int32 [slots, positions] with pages in the order given; what nobody reads is page 0."""
        table = np.zeros((2 * len(self.queries), max(self.kv_lens) + 3), np.int32)
        fresh = iter(order)
        for slot, length in zip(self.slots, self.kv_lens, strict=True):
            table[slot, :length] = [next(fresh) for _ in range(length)]
        for segment in self.segments:
            first, *others = (self.slots[row] for row in segment.rows)
            shared = slice(segment.start, segment.end)
            table[others, shared] = table[first, shared]
        return table


def rows(*pairs: tuple[int, int], segments: tuple[Segment, ...] = ()) -> Rows:
    """Rows as pairs of queries and positions."""
    return Rows(tuple(q for q, _ in pairs), tuple(n for _, n in pairs), segments)


@st.composite
def forests(draw: st.DrawFn) -> Rows:
    """Rows below random trees of segments, some of which leave rows out."""
    pairs: list[tuple[int, int]] = []
    segments: list[Segment] = []

    def grow(start: int, depth: int) -> None:
        length = draw(st.sampled_from([1, 7, 64, 65, 300]))
        first, place = len(pairs), len(segments)
        while len(pairs) - first < 2 or draw(st.booleans()):
            if depth < 3 and draw(st.integers(0, 3)) == 0:
                grow(start + length, depth + 1)
            else:
                queries = draw(st.sampled_from([1, 1, 1, 1, 2, 17, 127, 128, 200]))
                before = draw(st.sampled_from([0, 0, 1, 63, 64, 500]))
                pairs.append((queries, start + length + before + queries))
        members = list(range(first, len(pairs)))
        if depth == 0 and len(members) > 2 and draw(st.booleans()):
            members = members[::2]
            del segments[place:]  # those below would have no gap
        segments.insert(place, Segment(start, start + length, tuple(members)))

    for _ in range(draw(st.integers(0, 3))):
        grow(0, 0)
    alone = st.tuples(st.sampled_from([1, 1, 3, 130]), st.integers(0, 700))
    others = draw(st.lists(alone, min_size=not pairs, max_size=3))
    pairs += [(queries, queries + before) for queries, before in others]
    return rows(*pairs, segments=tuple(segments))


class Pages:
    """The pools of a batch; pages that no row reads, page 0 too, hold NaN."""

    def __init__(self, batch: Rows, heads: Heads, seed: int = 0) -> None:
        self.batch, self.heads = batch, heads
        self.scale = heads.size**-0.5
        total = sum(batch.kv_lens) + 9
        order = np.random.default_rng(seed).permutation(total - 1) + 1
        table = batch.page_table(order.tolist())
        shape = (heads.kv_heads, heads.size)
        # By place in the table, so that another seed puts the same rows to other pages.
        values = random(2, *table.shape, *shape, seed=1, dtype=heads.dtype)
        self.k_pool, self.v_pool = (
            torch.full((total, *shape), float("nan"), dtype=heads.dtype) for _ in range(2)
        )
        self.page_table = torch.tensor(table)
        for slot, length in zip(batch.slots, batch.kv_lens, strict=True):
            pages = self.page_table[slot, :length].long()
            self.k_pool[pages] = values[0, slot, :length]
            self.v_pool[pages] = values[1, slot, :length]
        tokens = sum(batch.queries)
        self.q = random(tokens, heads.kv_heads * heads.group, heads.size, dtype=heads.dtype)

    def plan(self, segments: tuple[Segment, ...] | None = None) -> BatchPlan:
        batch = self.batch
        shared = batch.segments if segments is None else segments
        kv_lens = list(batch.kv_lens)
        return BatchPlan(batch.q_indptr, kv_lens, self.page_table, batch.slots, shared)

    def attention(self, plan: object, q: Tensor | None = None) -> Tensor:
        return attention(self.q if q is None else q, self.k_pool, self.v_pool, plan, self.scale)

    def wanted(self) -> Tensor:
        """Row after row, in float64."""
        out = torch.empty(self.q.shape, dtype=torch.float64)
        batch, group = self.batch, self.heads.group
        for row, (slot, length) in enumerate(zip(batch.slots, batch.kv_lens, strict=True)):
            start, end = batch.q_indptr[row : row + 2]
            pages = self.page_table[slot, :length].long()
            k = self.k_pool[pages].double().repeat_interleave(group, dim=1)
            v = self.v_pool[pages].double().repeat_interleave(group, dim=1)
            scores = torch.einsum("qhd,nhd->hqn", self.q[start:end].double(), k) * self.scale
            position = torch.arange(length - (end - start), length)
            future = torch.arange(length) > position[:, None]
            weights = scores.masked_fill(future, float("-inf")).softmax(-1)
            out[start:end] = torch.einsum("hqn,nhd->qhd", weights, v)
        return out
