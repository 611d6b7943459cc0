"""Pictures of the tree and the requests, beside a walk over everything; how long things took."""

from __future__ import annotations

import math
import random
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from branchline.protocol import Inspect, Inspection
from branchline.runtime.inspection import CHILDREN, MOST_NODES, MOST_REQUESTS
from branchline.runtime.latency import Latencies

from .stub import make_harness, make_request
from .whole import Whole, ask

if TYPE_CHECKING:
    from branchline.radix import RadixTree


def picture_of(harness, nodes: int = 2000):
    taken = []
    harness.loop.inspect(nodes, taken.append)
    while not taken:
        harness.step()
    return taken[0].inspection("r", lambda ids: " ".join(map(str, ids)))


def everything(tree: RadixTree) -> dict[int, tuple]:
    """Each node by walking: parent, start, length, subtree, users, first tokens, salted."""
    found = {}

    def walk(node, parent, salt) -> int:
        inside = sum(
            walk(child, node.serial if len(node.tokens) else -1, salt)
            for child in node.children.values()
        )
        if len(node.tokens):
            text = " ".join(map(str, node.tokens[:48].tolist()))
            inside += len(node.tokens)
            facts = (parent, node.start, len(node.tokens), inside, node.locks, text)
            found[node.serial] = (*facts, salt is not None)
        return inside

    for salt, root in tree.roots():
        walk(root, -1, salt)
    return found


def shown(inspection) -> dict[int, tuple]:
    return {
        n.id: (n.parent, n.start, n.length, n.subtree, n.users, n.text, n.salted)
        for n in inspection.nodes
    }


@pytest.mark.parametrize("seed", range(3))
def test_the_picture_is_what_a_walk_finds(seed):
    rng = random.Random(seed)
    harness = make_harness(pages=600, max_context=300, max_running=4, check_invariants=True)
    for _ in range(12):
        family = [rng.randrange(1, 4)] * rng.choice([3, 60])
        prompts = [family + [rng.randrange(1, 9) for _ in range(9)] for _ in range(4)]
        requests = [make_request(p, salt=rng.choice([None, "s"]), max_tokens=3) for p in prompts]
        harness.loop.submit(requests)
        for _ in range(rng.randrange(6)):
            harness.step()
        inspection = picture_of(harness)
        right = everything(harness.loop.scheduler.memory.tree)
        assert shown(inspection) == right
        assert inspection.total_nodes == len(right)
        for count in (0, 1, 7):
            check_largest(picture_of(harness, count), harness, count)


def check_largest(inspection, harness, count: int) -> None:
    right = everything(harness.loop.scheduler.memory.tree)
    some = shown(inspection)
    assert some.items() <= right.items()
    assert len(some) == min(count, len(right))
    sizes = sorted((facts[3] for facts in right.values()), reverse=True)
    assert [facts[3] for facts in some.values()] == sizes[:count]
    seen = {-1}
    for node in inspection.nodes:
        assert node.parent in seen, "its parent comes first"
        seen.add(node.id)


def test_idle_says_how_many_were_used_later():
    harness = make_harness(max_running=1)
    for token in (5, 6, 7):
        harness.run(make_request([token] * 4, max_tokens=1))
    idle = {node.text.split()[0]: node.idle for node in picture_of(harness).nodes}
    assert idle == {"5": 1.0, "6": 0.5, "7": 0.0}


def test_a_tree_that_changes_while_the_picture_is_taken():
    """Nodes go and are split between two parts of the walk; what is shown fits together."""
    harness = make_harness(pages=4000, max_context=3000)
    tree, memory = harness.loop.scheduler.memory.tree, harness.loop.scheduler.memory
    inspector = harness.loop._inspector
    for first in range(600):
        tokens = [first, 1, 2, 3]
        tree.insert(tree.root(None), tokens, memory.pool.allocate(4))
    taken: list = []
    inspector.ask(500, taken.append)
    parts = inspector._take(500, inspector._asked.pop(500))
    for part, _ in enumerate(parts):
        if part % 50 == 7:
            tree.match([part % 600, 1, 2])
            memory.pool.release(tree.evict(9))
    tree.check()
    nodes = taken[0].inspection("r", str).nodes
    right = everything(tree)
    assert 400 < len(nodes) <= 500
    assert all(node.id in right for node in nodes)
    seen = {-1}
    for node in nodes:
        assert node.parent in seen
        seen.add(node.id)


def test_a_large_tree_is_looked_at_in_small_parts():
    """Only what is opened is looked at: of 10,000 leaves below one node each once, in parts."""
    harness = make_harness(pages=60_000, max_context=3000)
    tree, memory = harness.loop.scheduler.memory.tree, harness.loop.scheduler.memory
    root = tree.root(None)
    for first in range(10_000):
        tokens = np.array([first, 1, 2], dtype=np.int32)
        tree.insert(root, tokens, memory.pool.allocate(3))
    taken: list = []
    inspector = harness.loop._inspector
    inspector.ask(100, taken.append)
    parts = 0
    for _ in inspector._take(100, inspector._asked.pop(100)):
        parts += 1
    assert parts == math.ceil(10_000 / CHILDREN) + 100
    assert len(taken[0].runs) == 100


def test_who_asks_at_the_same_time_gets_the_same_picture():
    harness = make_harness()
    harness.run(make_request([1, 2, 3], max_tokens=2))
    taken: list = []
    for nodes in (5, 5, 2):
        harness.loop.inspect(nodes, taken.append)
    for _ in range(3):
        harness.step()
    assert taken[0] is taken[1] is not taken[2]


def test_an_idle_loop_answers():
    whole = Whole()
    whole.loop.start()
    try:
        whole.tell(Inspect("i", nodes=10))
        end = time.monotonic() + 5
        while not whole.posted and time.monotonic() < end:
            time.sleep(0.005)
    finally:
        whole.loop.stop()
    ((_, answer),) = whole.posted
    assert isinstance(answer, Inspection)
    assert (answer.rid, answer.nodes, answer.total_nodes) == ("i", (), 0)


@pytest.mark.parametrize("nodes", [-1, MOST_NODES + 1])
def test_too_large_a_picture_is_refused(nodes):
    whole = Whole()
    whole.tell(Inspect("i", nodes=nodes))
    assert f"nodes={nodes}: must be from 0 to {MOST_NODES}" in whole.failures("i")[0].message


def test_where_requests_stand():
    harness = make_harness(max_running=2)
    warm = [1, 2, 3, 4, 5, 6]
    harness.run(make_request(warm, max_tokens=1))
    first = make_request([*warm, 7, 8], max_tokens=20, ignore_eos=True)
    second = make_request([9, 9, 9], max_tokens=20, ignore_eos=True)
    waits = [make_request([i, 2], max_tokens=20) for i in range(3, 2000)]
    waits[7].priority = 3
    harness.loop.submit([first, second, *waits])
    for _ in range(3):
        harness.step()
    inspection = picture_of(harness)
    assert len(inspection.requests) == MOST_REQUESTS
    running = inspection.requests[:2]
    assert {view.state for view in running} == {"running"}
    assert {view.state for view in inspection.requests[2:]} == {"waiting"}
    views = {view.prompt_tokens: view for view in running}
    assert 8 in views or running[0].priority == 3, "the highest priority runs"
    held = {node.id: node for node in inspection.nodes}
    for view in running:
        assert held[view.node].users == 1
        assert 0 <= view.age < 60
        assert view.output_tokens <= 20 == view.max_tokens
    if 8 in views:
        assert views[8].cached_tokens == len(warm)
    harness.loop.abort([first, second, *waits])
    harness.step()
    harness.check_idle()


def test_texts_can_be_kept_back():
    for show_text in (True, False):
        whole = Whole(show_text=show_text)
        if show_text:
            tokenizer = SimpleNamespace(decode=lambda ids, **_: f"{len(ids)} secrets")
            whole.service._painter._tokenizer = tokenizer
        whole.tell(ask("r", "ABC", max_tokens=2))
        whole.run()
        whole.posted.clear()
        whole.tell(Inspect("i"))
        whole.harness.step()
        whole.service._painter.close()
        ((_, inspection),) = whole.posted
        texts = ["3 secrets", "1 secrets"] if show_text else ["", ""]
        assert [node.text for node in inspection.nodes] == texts


def test_a_bug_in_a_picture_is_answered():
    whole = Whole()
    whole.service._painter._tokenizer = SimpleNamespace()
    whole.tell(ask("r", "ABC", max_tokens=2))
    whole.run()
    whole.tell(Inspect("i"))
    whole.harness.step()
    whole.service._painter.close()
    (failure,) = whole.failures("i")
    assert failure.code == "internal"
    whole.tell(Inspect("after close"))
    whole.harness.step()
    assert not whole.failures("after close")


# -------------------------------------------------------------------------------- how long


def finished(arrived: float, admitted: float, first: float, tokens: int):
    request = make_request([1, 2], max_tokens=50)
    request.arrived, request.admitted, request.first_token = arrived, admitted, first
    request.tokens += [5] * tokens
    return request


def test_latencies_are_counted_by_bound():
    now = 10.0
    latencies = Latencies(clock=lambda: now)
    latencies.ended(finished(4.0, 4.02, 4.5, 12), finished=True)  # 0.5 s for each later token
    latencies.ended(finished(9.0, 9.0, 9.002, 1), finished=True)
    latencies.ended(finished(0.0, 8.0, -1.0, 0), finished=False)
    histograms = latencies.histograms()
    observed = {
        name: [
            bound for bound, n in zip((*h.bounds, None), h.counts, strict=True) for _ in range(n)
        ]
        for name, h in histograms.items()
    }
    assert observed == {
        "queue": [0.001, 0.025, 10.0],
        "ttft": [0.0025, 0.5],
        "tpot": [0.5],
        "e2e": [1.0, 10.0],
    }
    assert histograms["e2e"].sum == 7.0
    assert histograms["tpot"].sum == 0.5


@pytest.mark.parametrize(
    ("ttft", "tpot", "good"), [(0, 0, 3), (0.6, 0, 2), (0, 0.4, 2), (0.6, 0.6, 2), (0.4, 0.4, 0)]
)
def test_good_is_who_keeps_both_targets(ttft, tpot, good):
    latencies = Latencies(ttft, tpot, clock=lambda: 10.0)
    latencies.ended(finished(4.0, 4.0, 4.5, 12), finished=True)
    latencies.ended(finished(8.0, 8.0, 9.9, 3), finished=True)
    latencies.ended(finished(9.5, 9.5, -1.0, 0), finished=True)  # a prompt that is only computed
    latencies.ended(finished(9.0, 9.0, 9.1, 2), finished=False)
    assert latencies.good == good


def test_the_runtime_tells_of_them():
    harness = make_harness(target_ttft=100.0, target_tpot=1e-9, max_running=1)
    harness.run(*(make_request([i, 2, 3], max_tokens=3, ignore_eos=True) for i in range(1, 5)))
    info: list = []
    harness.loop.info(info.append)
    harness.step()
    assert (info[0].requests_good, info[0].target_ttft) == (0, 100.0)
    for name in ("queue", "ttft", "tpot", "e2e"):
        histogram = info[0].histograms[name]
        assert sum(histogram.counts) == 4
        assert len(histogram.counts) == len(histogram.bounds) + 1
    sums = {name: histogram.sum for name, histogram in info[0].histograms.items()}
    assert 0 < sums["queue"] < sums["ttft"] < sums["e2e"]
