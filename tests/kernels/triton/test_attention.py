"""Attention on the device against float64: odd lengths, scattered pages, everything else NaN."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

from branchline.kernels import Segment
from branchline.kernels.triton import attention as module
from branchline.kernels.triton.attention import TritonPlan
from branchline.kernels.triton.plan_layout import Capacity
from branchline.kernels.triton.tile_shapes import Geometry, Heads

from .batches import Pages, Rows, rows
from .compare import assert_close

HEADS = Heads(kv_heads=2, group=2, size=16, dtype=torch.float32)
SHARED = rows(
    (1, 171),
    (1, 140),
    (3, 150),
    (17, 190),
    (1, 131),
    segments=(Segment(0, 130, (0, 1, 2, 3, 4)), Segment(130, 137, (1, 2))),
)
# Chunks and steps of the loop are 64 positions here, long extends 128 tokens.
BATCHES = {
    "one position": rows((1, 1)),
    "decodes": rows((1, 63), (1, 64), (1, 65), (1, 127), (1, 128), (1, 211)),
    "more decodes than programs": rows(*[(1, n) for n in range(1, 22)]),
    "prompts": rows((7, 7), (65, 65), (1, 1)),
    "short extends": rows((2, 3), (5, 199), (17, 130), (3, 64)),
    "long extends": rows((128, 128), (131, 210)),
    "all at once": rows((1, 30), (4, 90), (130, 199), (1, 131), (33, 33)),
    "shared": SHARED,
    "not neighbours": rows((1, 90), (1, 80), (9, 99), segments=(Segment(0, 70, (0, 2)),)),
    "a long one shares": rows((1, 150), (128, 270), segments=(Segment(0, 140, (0, 1)),)),
}


@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES.keys())
def test_attention(batch: Rows) -> None:
    pages = Pages(batch, HEADS)
    assert_close(pages.attention(pages.plan()), pages.wanted())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("kv_heads", "group", "size"), [(1, 1, 64), (2, 4, 128), (1, 16, 64), (1, 7, 32), (1, 3, 256)]
)
def test_heads_and_types(kv_heads: int, group: int, size: int, dtype: torch.dtype) -> None:
    segments = (Segment(0, 66, (0, 1)),)
    pages = Pages(
        rows((1, 140), (1, 70), (6, 71), segments=segments), Heads(kv_heads, group, size, dtype)
    )
    assert_close(pages.attention(pages.plan()), pages.wanted())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("size", [64, 256])
def test_long_extends_of_other_heads(size: int, dtype: torch.dtype) -> None:
    pages = Pages(rows((129, 150)), Heads(1, 2, size, dtype))
    assert_close(pages.attention(pages.plan()), pages.wanted())


def test_the_page_table_may_have_64_bits() -> None:
    pages = Pages(SHARED, HEADS)
    wanted = pages.wanted()
    pages.page_table = pages.page_table.long()
    assert_close(pages.attention(pages.plan()), wanted)


def test_where_pages_lie_changes_no_bit() -> None:
    one, other = (Pages(SHARED, HEADS, seed) for seed in (1, 2))
    assert not torch.equal(one.page_table, other.page_table)
    found = one.attention(one.plan())
    assert torch.equal(found, other.attention(other.plan()))
    assert torch.equal(found, one.attention(one.plan()))


def test_a_plan_serves_every_layer() -> None:
    pages = Pages(SHARED, HEADS)
    plan = pages.plan()
    assert torch.equal(pages.attention(plan), pages.attention(plan))


def test_neither_segments_nor_chunks_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = Pages(SHARED, HEADS)
    wanted = pages.wanted()
    assert_close(pages.attention(pages.plan(segments=())), wanted)
    assert_close(pages.attention(pages.plan(segments=SHARED.segments[:1])), wanted)
    chunks = pages.plan().on(HEADS).capacity
    geometry = Geometry(2, 2, narrow_programs=1, wide_programs=1, long_block=128)
    monkeypatch.setattr(module, "geometry_of", lambda *_: geometry)
    whole = pages.plan()
    assert_close(pages.attention(whole), wanted)
    assert whole.on(HEADS).capacity.part_rows < chunks.part_rows


def load(plan: TritonPlan, batch: Rows) -> int:
    host = plan.plan(batch.q_indptr, batch.kv_lens, batch.slots, batch.segments)
    plan.load(host.pack(plan.capacity))
    return host.steps


def test_one_buffer_for_all_batches() -> None:
    """As in graphs: padded tokens, and plans of several sizes that share their memory."""
    pages = Pages(SHARED, HEADS)
    tokens = len(pages.q)
    largest = TritonPlan.empty(HEADS, pages.page_table, 64)
    load(largest, rows((64, 64)))
    q = torch.cat((pages.q, torch.full((64 - tokens, *pages.q.shape[1:]), float("nan"))))
    for plan in (largest, largest.at(32), largest):
        load(plan, SHARED)
        out = pages.attention(plan, q[: plan.capacity.tokens])
        assert_close(out[:tokens], pages.wanted())
        assert out[tokens:].isnan().all()  # as it was allocated
        assert plan.positions.shape == (plan.capacity.tokens,)


def test_small_graphs_launch_little() -> None:
    table = torch.zeros((3, 64), dtype=torch.int32)
    largest = TritonPlan.empty(HEADS, table, 256)
    assert largest.capacity.wide > 0
    assert largest.capacity.long > 0
    assert largest.at(64).capacity.long == 0
    assert largest.at(8).capacity.wide == 0


def lists(plan: TritonPlan) -> tuple[set[tuple[int, ...]], list[int]]:
    """The tiles, whatever their order and parts; the parts of each token."""
    tiles = plan.words_of("narrow").view(-1, 8)[: int(plan.count("narrow"))]
    merges = plan.words_of("merges").view(-1, 4)[: int(plan.count("merges"))]
    return {tuple(tile) for tile in tiles[:, :5].tolist()}, merges[:, 2].tolist()


@pytest.mark.parametrize("shared", [False, True])
def test_growing_is_planning_again(shared: bool) -> None:
    segments = (Segment(0, 21, (0, 1)),) if shared else ()
    lengths, steps = (63, 64, 62, 191, 1), 70
    batch = rows(*[(1, n) for n in lengths], segments=segments)
    longest = rows(*[(1, n + steps) for n in lengths], segments=segments)
    pages = Pages(longest, HEADS)
    plan = TritonPlan.empty(HEADS, pages.page_table, 8)
    assert load(plan, batch) >= 64
    again = TritonPlan.empty(HEADS, pages.page_table, 8)
    for step in range(1, 65):
        plan.grow()
        now = replace(batch, kv_lens=tuple(n + step for n in lengths))
        load(again, now)
        assert torch.equal(plan.positions, again.positions)
        assert lists(plan) == lists(again)
        if step in (1, 2, 3, 64):
            found = pages.attention(plan)
            pages.batch = now
            assert_close(found, pages.wanted())
            pages.batch = longest


def test_growing_is_for_decodes_only() -> None:
    pages = Pages(SHARED, HEADS)
    plan = TritonPlan.empty(HEADS, pages.page_table, len(pages.q))
    assert load(plan, SHARED) == 0
    before = plan.words.clone()
    plan.grow()
    assert torch.equal(plan.words, before)


def test_a_plan_is_for_the_heads_it_was_made_for() -> None:
    pages = Pages(rows((1, 3)), HEADS)
    plan = TritonPlan.empty(replace(HEADS, group=1), pages.page_table, 1)
    with pytest.raises(AssertionError):
        pages.attention(plan)


def test_room_grows_with_tokens() -> None:
    """So that a smaller plan fits in the buffers of a larger one."""
    geometry = Geometry(8, 4, narrow_programs=396, wide_programs=264, long_block=128)
    sizes = [Capacity.of(tokens, geometry) for tokens in (1, 2, 8, 127, 128, 512, 1024, 5000)]
    for smaller, larger in itertools.pairwise(sizes):
        assert larger.holds(smaller)
