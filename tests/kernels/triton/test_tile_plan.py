"""The planner, replayed position by position: every query sees each of its pages exactly once."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from branchline.kernels import Segment
from branchline.kernels.triton.plan_layout import COUNTS, Capacity, layout
from branchline.kernels.triton.tile_plan import HostPlan, plan_tiles
from branchline.kernels.triton.tile_shapes import LONG, NARROW, WIDE, Geometry

from .batches import Rows, forests, rows

SMALL = Geometry(kv_heads=2, padded_group=4, narrow_programs=6, wide_programs=4, long_block=64)
H200 = Geometry(kv_heads=8, padded_group=4, narrow_programs=396, wide_programs=264, long_block=128)


def plan_of(batch: Rows, geometry: Geometry, limits: Capacity | None = None) -> HostPlan:
    limits = limits or Capacity.of(sum(batch.queries), geometry)
    plan = plan_tiles(geometry, limits, batch.q_indptr, batch.kv_lens, batch.slots, batch.segments)
    assert limits.holds(plan.capacity)
    return plan


def unpack(plan: HostPlan, capacity: Capacity) -> dict[str, np.ndarray]:
    """What a kernel sees: the used part of each list in a buffer that held something else."""
    words = np.full(capacity.words, -7, np.int32)
    assert plan.pack(capacity, words) is words
    where = layout(capacity)
    counts = dict(zip(COUNTS, words[where["counts"]][::4].tolist(), strict=True))
    width = {"narrow": 8, "wide": 8, "long": 4, "merges": 4, "growing": 1}
    lists = {
        name: words[where[name]].reshape(-1, size)[: counts[name]] for name, size in width.items()
    }
    return lists | {
        "positions": words[where["positions"]],
        "part_rows": words[where["part_rows"]],
        "chunk": np.array(counts["chunk"]),
    }


def replay(batch: Rows, geometry: Geometry, seen: dict[str, np.ndarray]) -> None:
    """Check a plan against the batch, position by position."""
    order = list(range(1, sum(batch.kv_lens) + 1))
    table = batch.page_table(order)
    position, slot = {}, {}
    for row, (start, end) in enumerate(zip(batch.q_indptr, batch.q_indptr[1:], strict=False)):
        for token in range(start, end):
            position[token] = batch.kv_lens[row] - (end - token)
            slot[token] = batch.slots[row]
    assert seen["positions"][: len(position)].tolist() == list(position.values())

    reads: dict[int, list[tuple[int, list[int]]]] = defaultdict(list)  # token -> (part, positions)
    for name, most in (("narrow", NARROW), ("wide", WIDE)):
        for first, count, its_slot, start, length, part, begin, _ in seen[name].tolist():
            assert 0 < count * geometry.padded_group <= most
            assert length > 0
            for query in range(count):
                visible = range(start, min(start + length, begin + query + 1))
                assert (
                    table[its_slot, visible].tolist()
                    == table[slot[first + query], visible].tolist()
                )
                row_of_part = part + query if part >= 0 else -1
                reads[first + query].append((row_of_part, list(visible)))
    for first, count, its_slot, begin in seen["long"].tolist():
        assert 0 < count <= geometry.long_block
        for query in range(count):
            assert slot[first + query] == its_slot
            reads[first + query].append((-1, list(range(begin + query + 1))))

    merged = {token: (place, count) for token, place, count, _ in seen["merges"].tolist()}
    rows_used: list[int] = []
    for token, last in position.items():
        everything = [one for _, read in reads[token] for one in read]
        assert sorted(everything) == list(range(last + 1))
        parts = [part for part, _ in reads[token]]
        if parts == [-1]:
            assert merged.get(token, (0, 1))[1] == 1
            continue
        place, count = merged[token]
        own = seen["part_rows"][place : place + count].tolist()
        assert sorted(own) == sorted(parts)
        read_of = dict(reads[token])
        begins = [read_of[part][0] for part in own if read_of[part]]
        assert begins == sorted(begins)  # prefix to suffix
        rows_used += own
    assert len(set(rows_used)) == len(rows_used)


@given(forests(), st.sampled_from([1, 4, 16]), st.booleans())
@settings(max_examples=60, deadline=None)
def test_every_position_is_read_once(batch: Rows, padded_group: int, tight: bool) -> None:
    geometry = replace(SMALL, padded_group=padded_group)
    plan = plan_of(batch, geometry)
    larger = Capacity.of(sum(batch.queries) + 5, geometry)
    replay(batch, geometry, unpack(plan, plan.capacity if tight else larger))


@given(forests(), st.integers(1, 40))
@settings(max_examples=40, deadline=None)
def test_whatever_fits_little_room_is_right_too(batch: Rows, room: int) -> None:
    tokens = sum(batch.queries)
    most = Capacity.of(tokens, SMALL)
    limits = replace(most, part_rows=2 * tokens + room, wide=min(most.wide, tokens))
    plan = plan_of(batch, SMALL, limits)
    replay(batch, SMALL, unpack(plan, plan.capacity))


@pytest.mark.parametrize(
    ("context", "batch", "chunk"),
    [
        (1024, 1, 64),
        (1024, 8, 192),
        (1024, 32, 704),
        (2048, 8, 384),
        (32768, 1, 704),
        (2048, 64, 1024),
    ],
)
def test_chunks_fill_the_device(context: int, batch: int, chunk: int) -> None:
    """The table of the split rule, for 132 processors of 3 programs and 8 heads of K and V."""
    assert plan_of(rows(*[(1, context)] * batch), H200).chunk == chunk


def test_a_shared_prefix_is_read_once_for_all() -> None:
    shared = Segment(0, 5920, tuple(range(64)))
    plan = plan_of(rows(*[(1, 5984)] * 64, segments=(shared,)), H200)
    wide = plan.lists["wide"]
    assert wide[:, 4].sum() == 5920 * 4  # 64 decodes are 4 tiles of 16
    assert plan.lists["narrow"][:, 4].sum() == 64 * 64
    # What reads the same positions follows one another.
    assert wide[:, 3].tolist() == sorted(wide[:, 3].tolist())


def test_an_extend_of_a_few_tokens_is_narrow_and_a_long_one_is_apart() -> None:
    plan = plan_of(rows((4, 1000), (5, 1000), (LONG - 1, 300), (LONG, 300)), H200)
    assert set(plan.lists["narrow"][:, 0].tolist()) == {0}
    assert set(plan.lists["wide"][:, 0].tolist()) == {4, *range(9, 9 + LONG - 1, 16)}
    assert plan.lists["long"].tolist() == [[9 + LONG - 1, LONG, 1, 300 - LONG]]


def test_room_for_growing_is_kept() -> None:
    plan = plan_of(rows((1, 64), (1, 65), (1, 1)), H200)
    assert plan.chunk == 64
    assert plan.steps == 64  # the first row's tile is full: the next one holds 64
    assert plan.capacity.narrow == len(plan.lists["narrow"]) + 3
    assert plan_of(rows((1, 64), (2, 65)), H200).steps == 0
