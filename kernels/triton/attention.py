"""Attention on the device: a plan's buffers, and the launches that read them.

A batch that is not in a graph has a plan of its own (`BatchPlan`). A graph has a `TritonPlan` whose
buffers stay: `load` takes the plan of the next batch, `grow` makes every row one longer without
the host. Nothing here waits for the device.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import torch

from branchline.kernels.triton.combine import combine_variant
from branchline.kernels.triton.extend import extend_launch, extend_variant
from branchline.kernels.triton.grow import grow_variant
from branchline.kernels.triton.launch import launch
from branchline.kernels.triton.plan_layout import COUNTS, Capacity, layout
from branchline.kernels.triton.tile_plan import plan_tiles
from branchline.kernels.triton.tile_shapes import NARROW, WIDE, Geometry, Heads
from branchline.kernels.triton.tiles import tiles_launch, tiles_variant

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from branchline.kernels.kernel_set import Segment
    from branchline.kernels.triton.tile_plan import HostPlan

# Saved reads of a position that pay for a segment: 2 MB of K and V of a layer of Llama 3 8B.
SEGMENT_COST = 512
# Multiprocessors, as it were, of the interpreter: so few that programs take more than one tile.
_INTERPRETED_PROCESSORS = 8


@dataclass(frozen=True, slots=True)
class TritonPlan:
    """A plan in the device's memory, with room for any batch of `capacity.tokens` tokens."""

    heads: Heads
    geometry: Geometry
    capacity: Capacity
    page_table: Tensor  # int32 [slots, max_context]
    words: Tensor  # int32 [>= capacity.words], as plan_layout has it; starts at 16 bytes
    parts: Tensor  # float32 [>= capacity.part_rows, H, D]: attention over a part of the positions
    lse: Tensor  # float32 [>= capacity.part_rows, H]: log2 of its sum of exponents

    @classmethod
    def empty(cls, heads: Heads, page_table: Tensor, tokens: int) -> TritonPlan:
        """Buffers for any batch of at most `tokens` tokens; `load` comes before the first use."""
        geometry = geometry_of(heads, page_table.device)
        capacity = Capacity.of(tokens, geometry)
        return _buffers(heads, geometry, capacity, page_table)

    def at(self, tokens: int) -> TritonPlan:
        """The same buffers for fewer tokens: the plan of a smaller graph, with smaller launches.

        Of all the plans that share buffers, the one loaded last is valid.
        """
        return replace(self, capacity=Capacity.of(tokens, self.geometry))

    def plan(
        self,
        q_indptr: Sequence[int],
        kv_lens: Sequence[int],
        slots: Sequence[int],
        segments: Sequence[Segment],
    ) -> HostPlan:
        """Plan a batch on the host; its `pack(self.capacity)` is what `load` takes."""
        return plan_tiles(self.geometry, self.capacity, q_indptr, kv_lens, slots, segments)

    def load(self, words: Tensor | NDArray[np.int32]) -> None:
        """Queue one copy of a packed plan, int32 [capacity.words], from wherever it lies."""
        source = words if isinstance(words, torch.Tensor) else torch.from_numpy(words)
        self.words[: len(source)].copy_(source, non_blocking=True)

    def grow(self) -> None:
        """Make each row one position longer, `HostPlan.steps` times at most.

        Does nothing where one of the rows is not a decode.
        """
        launch(
            grow_variant(),
            (1,),
            tile_count=self.count("narrow"),
            row_count=self.count("growing"),
            chunk=self.count("chunk"),
            positions=self.positions,
            tiles=self.words_of("narrow"),
            merges=self.words_of("merges"),
            growing=self.words_of("growing"),
            part_rows=self.words_of("part_rows"),
        )

    @property
    def positions(self) -> Tensor:
        """The position of each token, int32 [capacity.tokens]; it grows too."""
        return self.words_of("positions")

    def words_of(self, name: str) -> Tensor:
        """One list of the plan, int32, flat."""
        return self.words[layout(self.capacity)[name]]

    def count(self, name: str) -> Tensor:
        """How much of a list is used, int32 [1]."""
        start = 4 * COUNTS.index(name)
        return self.words[start : start + 1]


@dataclass(slots=True)
class BatchPlan:
    """The arguments of `KernelSet.plan`, and the plan once a layer has shown its heads."""

    q_indptr: list[int]
    kv_lens: list[int]
    page_table: Tensor
    slots: list[int]
    segments: Sequence[Segment]
    _made: TritonPlan | None = None

    def on(self, heads: Heads) -> TritonPlan:
        """The plan in device memory, made by the first layer."""
        if self._made is None:
            geometry = geometry_of(heads, self.page_table.device)
            limits = Capacity.of(self.q_indptr[-1], geometry)
            arguments = (self.q_indptr, self.kv_lens, self.slots, self.segments)
            host = plan_tiles(geometry, limits, *arguments)
            self._made = _buffers(heads, geometry, host.capacity, self.page_table)
            self._made.load(host.pack(host.capacity))
        assert self._made.heads == heads
        return self._made


def _buffers(heads: Heads, geometry: Geometry, capacity: Capacity, table: Tensor) -> TritonPlan:
    shape = (capacity.part_rows, heads.kv_heads * heads.group)
    return TritonPlan(
        heads=heads,
        geometry=geometry,
        capacity=capacity,
        page_table=table,
        words=torch.zeros(capacity.words, dtype=torch.int32, device=table.device),
        parts=torch.empty((*shape, heads.size), dtype=torch.float32, device=table.device),
        lse=torch.empty(shape, dtype=torch.float32, device=table.device),
    )


@lru_cache
def geometry_of(heads: Heads, device: torch.device) -> Geometry:
    """What plans for these heads on this device have to know."""
    processors = _INTERPRETED_PROCESSORS
    if device.type == "cuda":
        processors = torch.cuda.get_device_properties(device).multi_processor_count
    return Geometry(
        kv_heads=heads.kv_heads,
        padded_group=heads.padded_group,
        narrow_programs=processors * tiles_launch(NARROW, heads).programs,
        wide_programs=processors * tiles_launch(WIDE, heads).programs,
        long_block=extend_launch(heads).block_m,
    )


def attention(
    q: Tensor, k_pool: Tensor, v_pool: Tensor, plan: TritonPlan | BatchPlan, sm_scale: float
) -> Tensor:
    """softmax(q kᵀ · sm_scale) v of each row over its own pages; causal; grouped heads.

    Shapes and types are `KernelSet`'s; q and the pools are dense, and no page that a row reads
    holds a NaN, wherever in it. The result [T, H, D] of tokens that the plan does not know, which
    pad a graph's batch, is left as it was allocated.
    """
    assert all(tensor.is_contiguous() for tensor in (q, k_pool, v_pool))
    kv_heads, size = k_pool.shape[1:]
    heads = Heads(kv_heads, q.shape[1] // kv_heads, size, q.dtype)
    tiled = plan.on(heads) if isinstance(plan, BatchPlan) else plan
    assert tiled.heads == heads, (tiled.heads, heads)
    out = torch.empty_like(q)
    scale = sm_scale * math.log2(math.e)
    _tiles(NARROW, tiled, q, k_pool, v_pool, out, scale)
    _tiles(WIDE, tiled, q, k_pool, v_pool, out, scale)
    launch(
        extend_variant(heads),
        (tiled.capacity.long, q.shape[1]),
        q=q,
        k_pool=k_pool,
        v_pool=v_pool,
        page_table=tiled.page_table,
        block_count=tiled.count("long"),
        blocks=tiled.words_of("long"),
        out=out,
        scale=scale,
        table_stride=tiled.page_table.stride(0),
    )
    launch(
        combine_variant(heads),
        (min(tiled.capacity.merges, tiled.geometry.narrow_programs), q.shape[1]),
        merge_count=tiled.count("merges"),
        merges=tiled.words_of("merges"),
        part_rows=tiled.words_of("part_rows"),
        parts=tiled.parts,
        lse=tiled.lse,
        out=out,
    )
    return out


def _tiles(
    rows: int,
    plan: TritonPlan,
    q: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    out: Tensor,
    scale: float,
) -> None:
    """The launch for one list of tiles: as many programs as run at once, if there are tiles."""
    narrow = rows == NARROW
    name = "narrow" if narrow else "wide"
    programs = plan.geometry.narrow_programs if narrow else plan.geometry.wide_programs
    most = plan.capacity.narrow if narrow else plan.capacity.wide
    launch(
        tiles_variant(rows, plan.heads),
        (min(programs, most * plan.heads.kv_heads),),
        q=q,
        k_pool=k_pool,
        v_pool=v_pool,
        page_table=plan.page_table,
        tile_count=plan.count(name),
        tiles=plan.words_of(name),
        out=out,
        parts=plan.parts,
        lse=plan.lse,
        scale=scale,
        table_stride=plan.page_table.stride(0),
    )
