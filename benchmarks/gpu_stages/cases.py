"""Attention over pages in random order: its plan, its pools, the right answer in float64."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from branchline.kernels.triton.attention import TritonPlan, attention

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from branchline.kernels import Segment
    from branchline.kernels.triton.tile_shapes import Heads

_ALIGNMENT = 16  # of the page table's rows, as the runner has them
_UNREAD = 9  # pages that no row has


class Case:
    """A batch: the last `queries[r]` of row r's `kv_lens[r]` positions are new."""

    def __init__(
        self,
        device: torch.device,
        heads: Heads,
        queries: Sequence[int],
        kv_lens: Sequence[int],
        segments: Sequence[Segment] = (),
        *,
        scattered: bool = True,
        sets: int = 1,
    ) -> None:
        """With `sets` pools, over which calls take turns; unless scattered, pages are in order."""
        self.heads, self.queries, self.kv_lens = heads, queries, kv_lens
        self.q_indptr = [0, *np.cumsum(queries).tolist()]
        self._table = self._page_table(segments, scattered=scattered)
        self.page_table = torch.from_numpy(self._table).to(device)
        tokens, count = self.q_indptr[-1], heads.kv_heads * heads.group
        self.q = torch.randn((tokens, count, heads.size), dtype=heads.dtype, device=device)
        kind: dict[str, Any] = {"dtype": heads.dtype, "device": device}
        shape = (self.pages, heads.kv_heads, heads.size)
        self.pools = [(torch.randn(shape, **kind), torch.randn(shape, **kind)) for _ in range(sets)]
        self.scale = heads.size**-0.5
        self.plan = TritonPlan.empty(heads, self.page_table, tokens)
        self.load(kv_lens, segments)

    def _page_table(self, segments: Sequence[Segment], *, scattered: bool) -> np.ndarray:
        """Int32 [rows, positions]; what nobody reads is page 0."""
        width = -(-max(self.kv_lens) // _ALIGNMENT) * _ALIGNMENT
        own = np.arange(width) < np.array(self.kv_lens)[:, None]
        for segment in segments:
            own[list(segment.rows[1:]), segment.start : segment.end] = False
        self.pages = 1 + int(own.sum()) + _UNREAD
        order = np.arange(1, self.pages, dtype=np.int32)
        if scattered:
            order = np.random.default_rng(0).permutation(order)
        table = np.zeros(own.shape, np.int32)
        table[own] = order[: self.pages - 1 - _UNREAD]
        for segment in segments:
            shared = slice(segment.start, segment.end)
            table[list(segment.rows[1:]), shared] = table[segment.rows[0], shared]
        return table

    def load(self, kv_lens: Sequence[int], segments: Sequence[Segment] = ()) -> int:
        """Plan the batch at these lengths; how often it may then grow."""
        slots = range(len(kv_lens))
        host = self.plan.plan(self.q_indptr, kv_lens, slots, segments)
        self.plan.load(host.pack(self.plan.capacity))
        return host.steps

    def poison(self) -> None:
        """Fill every page that no row reads, page 0 too, with NaN."""
        used = np.concatenate(
            [self._table[row, :length] for row, length in enumerate(self.kv_lens)]
        )
        unused = torch.ones(self.pages, dtype=torch.bool)
        unused[torch.from_numpy(used).long()] = False
        unused = unused.to(self.q.device)
        for pool in self.pools[0]:
            pool[unused] = float("nan")

    def calls(self) -> list[Callable[[], Tensor]]:
        """The attention over each of the pools."""
        return [partial(attention, self.q, k, v, self.plan, self.scale) for k, v in self.pools]

    @property
    def position_bytes(self) -> int:
        """K and V of one position."""
        return 2 * self.heads.kv_heads * self.heads.size * self.heads.dtype.itemsize

    def wanted(self) -> Tensor:
        """Float64 [T, H, D], row after row."""
        k_pool, v_pool = self.pools[0]
        out = torch.empty(self.q.shape, dtype=torch.float64, device=self.q.device)
        for row, (new, length) in enumerate(zip(self.queries, self.kv_lens, strict=True)):
            start, end = self.q_indptr[row : row + 2]
            pages = self.page_table[row, :length].long()
            k, v = (
                pool[pages].double().repeat_interleave(self.heads.group, dim=1)
                for pool in (k_pool, v_pool)
            )
            scores = torch.einsum("qhd,nhd->hqn", self.q[start:end].double(), k) * self.scale
            places = torch.arange(length, device=pages.device)
            future = places > places[length - new :, None]
            weights = scores.masked_fill(future, float("-inf")).softmax(-1)
            out[start:end] = torch.einsum("hqn,nhd->qhd", weights, v)
        return out


def error(found: Tensor, wanted: Tensor) -> float:
    """‖found − wanted‖ / ‖wanted‖; NaN where anything found is."""
    return float((found.double() - wanted.double()).norm() / wanted.double().norm())
