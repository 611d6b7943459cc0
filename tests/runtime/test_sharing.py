"""Which segments a batch's plan has, and what it saves."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from branchline.radix import RadixTree
from branchline.runtime.sharing import SharingPlanner, share

from .stub import continuation, make_harness, make_request


@dataclass
class FakeRow:
    request: SimpleNamespace
    start: int
    shareable: int


def rows_of(sequences: list[list[int]], starts: list[int] | None = None) -> list[FakeRow]:
    """Rows whose whole sequences are in one tree, with queries from `starts` on."""
    tree = RadixTree()
    nodes = []
    page = 1
    for tokens in sequences:
        match = tree.match(tokens)
        rest = tokens[match.length :]
        nodes.append(tree.insert(match.node, rest, np.arange(page, page + len(rest))))
        tree.lock(nodes[-1])
        page += len(rest)
    starts = starts or [len(tokens) for tokens in sequences]
    return [
        FakeRow(SimpleNamespace(node=node, id=index), start, min(start, len(tokens)))
        for index, (node, start, tokens) in enumerate(zip(nodes, starts, sequences, strict=True))
    ]


def as_sets(rows: list[FakeRow], cost: int) -> list[tuple[int, int, set[int]]]:
    sharing = share(rows, cost)
    assert sorted(sharing.order) == list(range(len(rows)))
    return [(s.start, s.end, {sharing.order[i] for i in s.rows}) for s in sharing.segments]


HEAD = list(range(100))


def test_everyone_and_a_subgroup():
    rows = rows_of([[*HEAD, 1], [*HEAD, *range(200, 250), 2], [*HEAD, *range(200, 250), 3], [7]])
    assert as_sets(rows, 10) == [(0, 100, {0, 1, 2}), (100, 150, {1, 2})]


def test_what_is_not_worth_a_segment_goes_to_those_below():
    left, right = range(200, 300), range(300, 400)
    rows = rows_of([[*HEAD[:5], *half, i] for half in (left, right) for i in range(2)])
    assert as_sets(rows, 50) == [(0, 105, {0, 1}), (0, 105, {2, 3})]


def test_nodes_with_the_same_members_are_one_segment():
    rows = rows_of([HEAD[:20], HEAD[:40], [*HEAD, 1], [*HEAD, 2]])
    assert as_sets(rows[2:], 0) == [(0, 100, {0, 1})]


def test_a_row_that_computes_the_prefix_itself_does_not_spoil_it():
    rows = rows_of([[*HEAD, i] for i in range(5)], starts=[0, 50, 101, 101, 101])
    assert as_sets(rows, 10) == [(0, 50, {1, 2, 3, 4}), (50, 100, {2, 3, 4})]
    assert as_sets(rows, 101) == [(0, 100, {2, 3, 4})]
    assert as_sets(rows[:2], 10) == []


def test_identical_prompts_share_all_but_the_last_token():
    rows = rows_of([HEAD] * 4, starts=[99] * 4)
    assert as_sets(rows, 10) == [(0, 99, {0, 1, 2, 3})]


def test_the_plan_is_kept_until_rows_come_go_or_grow_in_the_tree():
    planner = SharingPlanner(10)
    rows = rows_of([[*HEAD, i] for i in range(3)])
    first = planner.plan(rows)
    for row in rows:
        row.start += 1
    assert planner.plan(rows) is first
    assert planner.plan(rows[:2]) is not first


@given(
    sequences=st.lists(
        st.lists(st.integers(0, 2), min_size=1, max_size=12), min_size=1, max_size=10, unique_by=str
    ),
    cost=st.integers(0, 8),
    data=st.data(),
)
def test_segments_of_random_trees(sequences, cost, data):
    """Each row's segments follow each other from 0 and end before its queries; each pays off."""
    starts = [data.draw(st.integers(0, len(tokens))) for tokens in sequences]
    rows = rows_of(sequences, starts)
    ends = [0] * len(rows)
    saved = 0
    for start, end, members in as_sets(rows, cost):
        assert (len(members) - 1) * (end - start) > cost
        saved += (len(members) - 1) * (end - start)
        assert len({tuple(sequences[row][:end]) for row in members}) == 1
        for row in members:
            assert ends[row] == start
            ends[row] = end
            assert end <= starts[row]
    if cost == 0:
        prefixes = {
            tuple(tokens[: i + 1])
            for tokens, start in zip(sequences, starts, strict=True)
            for i in range(start)
        }
        reads = sum(starts)
        assert reads - saved == len(prefixes), "with no cost, everything shared is read once"


@pytest.mark.parametrize("overlap", [False, True])
def test_a_shared_prefix_is_read_once_a_step(overlap):
    harness = make_harness(
        pages=4000, max_running=64, max_batch_tokens=512, chunk_tokens=512, overlap=overlap
    )
    harness.model.segment_cost = 0
    prefix = [1 + i % 50 for i in range(1000)]
    requests = [
        make_request([*prefix, 1 + i % 50, 1 + i // 50], max_tokens=20, ignore_eos=True)
        for i in range(64)
    ]
    harness.loop.submit(requests)
    while len(harness.loop.scheduler.running) < 64 or any(r.extending for r in requests):
        harness.step()
    before = harness.model.read
    harness.step()
    assert 1000 + 64 * 2 < harness.model.read - before < 1000 + 64 * 20
    harness.run()
    for request in requests:
        assert harness.output(request) == continuation(request.prompt, 20, ignore_eos=True)


def test_without_cascade_every_row_reads_for_itself():
    harness = make_harness(cascade=False)
    harness.run(*(make_request([*range(1, 40), i], max_tokens=9) for i in range(4)))
    assert harness.model.segments == 0
