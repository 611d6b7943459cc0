"""What programs tell of their next requests, and what then goes first and last from the cache."""

from __future__ import annotations

import random

import pytest

import branchline as bl
from branchline import eventloop
from branchline.hints import Hints
from branchline.protocol import Ended, Generate, Score
from branchline.radix import RadixTree, Standing
from branchline.radix.node import subtree
from branchline.runtime.programs import PIN, Programs
from branchline.runtime.request import Origin

from .stub import Harness, continuation, make_harness, make_request
from .test_service import Desk, ask, refusal

WAYS = {"hints": True, "none": False}


def asks(
    prompt: list[int],
    program: str | None = "p",
    branch: tuple[int, ...] = (),
    *,
    fan_out: int = 1,
    keep: float = 0.0,
    **params: object,
):
    request = make_request(prompt, ignore_eos=True, **params)
    request.origin = Origin(program, Hints(branch=branch, fan_out=fan_out, keep=keep))
    return request


def told(harness: Harness, program: str, branch: tuple[int, ...] = ()) -> None:
    harness.loop.ended(b"", program, branch)
    harness.step()


def tokens(first: int, count: int = 20) -> list[int]:
    """A prompt that shares nothing with one that starts otherwise."""
    return [first] + [1 + (first + i) % 50 for i in range(count - 1)]


def cached(harness: Harness, prompt: list[int]) -> int:
    return harness.loop.scheduler.memory.tree.match_length(prompt)


def squeeze(harness: Harness, pages: int) -> None:
    """Evict so many pages, as a request in need of them does."""
    memory = harness.loop.scheduler.memory
    memory.programs.expire()
    memory.pool.release(memory.tree.evict(pages))
    harness.loop.check()


def standings(harness: Harness) -> list[Standing]:
    tree = harness.loop.scheduler.memory.tree
    return [node.standing for root in tree._roots.values() for node in subtree(root)]


@pytest.mark.parametrize("hinted", WAYS.values(), ids=WAYS)
def test_a_live_program_outlives_what_nobody_speaks_for(hinted):
    harness = make_harness()
    harness.run(asks(tokens(1)) if hinted else make_request(tokens(1)))
    for first in (2, 3, 4):
        harness.run(make_request(tokens(first), ignore_eos=True))
    squeeze(harness, 3 * (20 + 7))
    assert [cached(harness, tokens(first)) for first in (1, 2, 3, 4)] == (
        [20, 0, 0, 0] if hinted else [0, 0, 0, 20]
    )


def test_what_a_program_had_for_itself_goes_first_once_it_has_ended():
    harness = make_harness()
    harness.run(make_request(tokens(1), ignore_eos=True))
    request = asks(tokens(2))
    harness.run(request)
    told(harness, "p")
    squeeze(harness, 7)  # what it generated; its first prompt may be others' too
    assert cached(harness, request.tokens) == 20
    squeeze(harness, 27)
    assert (cached(harness, tokens(1)), cached(harness, tokens(2))) == (0, 20)


def test_a_program_that_has_ended_is_as_good_as_new_for_who_uses_it_again():
    harness = make_harness()
    first = asks(tokens(1))
    harness.run(first)
    told(harness, "p")
    harness.run(make_request(tokens(2), ignore_eos=True))
    harness.run(make_request(first.tokens[:-1], max_tokens=1))
    squeeze(harness, 27)
    assert (cached(harness, first.tokens), cached(harness, tokens(2))) == (27, 0)


def test_losing_branches_go_before_anything_else_and_the_fork_stays():
    harness = make_harness()
    trunk = asks(tokens(1))
    harness.run(trunk)
    harness.run(make_request(tokens(9), ignore_eos=True))
    start = trunk.tokens[:-1]
    branches = [
        asks([*start, 40 + index], branch=(0, index), fan_out=3, max_tokens=6) for index in range(3)
    ]
    harness.run(*branches)
    told(harness, "p", (0, 0))
    told(harness, "p", (0, 2))
    squeeze(harness, 2 * 6)
    assert [cached(harness, branch.tokens) for branch in branches] == [27, 27 + 6, 27]
    squeeze(harness, 27)
    assert (cached(harness, tokens(9)), cached(harness, branches[1].tokens)) == (0, 33)


def test_a_fork_is_kept_until_every_branch_has_come():
    """Two programs with as much cached; the one with branches to come goes last."""
    harness = make_harness()
    forked, single = asks(tokens(1), "forked"), asks(tokens(2), "single")
    harness.run(forked)
    start = forked.tokens[:-1]
    first = asks([*start, 41], "forked", (0, 0), fan_out=3, max_tokens=6)
    harness.run(first)
    harness.run(single)
    told(harness, "forked", (0, 0))
    squeeze(harness, 6 + 27)
    assert (cached(harness, start), cached(harness, tokens(2))) == (27, 0)
    # Trunk and two branches still want it; they come, end, and only the trunk does.
    harness.run(asks([*start, 42], "forked", (0, 1), fan_out=3, max_tokens=6))
    told(harness, "forked", (0, 1))
    told(harness, "forked", (0, 2))  # never came
    harness.run(asks(tokens(3), "other"), asks(tokens(3), "another"))
    squeeze(harness, 6 + 27)
    assert (cached(harness, start), cached(harness, tokens(3))) == (0, 20)


def test_branches_of_a_branch_that_asked_nothing_start_where_the_trunk_is():
    harness = make_harness()
    trunk = asks(tokens(1))
    harness.run(trunk)
    harness.run(asks([*trunk.tokens[:-1], 5], branch=(0, 1, 0, 0), fan_out=2, max_tokens=4))
    node = harness.loop.scheduler.memory.tree.match(trunk.tokens[:-1]).node
    assert node.needs == 3, "the trunk, one branch to come, and below it the one that came"


def test_select_goes_on_after_its_prompt_and_n_from_the_first():
    desk = Desk()
    desk.tell(Score("s", (("program", "ab"),), ("xx", "xy"), unconditional=True, program="p"))
    desk.tell(ask("g", "abc", n=3))
    desk.loop.receive()
    assert [request.origin for request in desk.loop.live] == [
        Origin("p", Hints(), goes_on_at=2), *[None] * 6
    ]  # fmt: skip
    hints = Hints(branch=(0, 4), fan_out=5)
    desk.tell(Generate("h", (("program", "x"),), ask(n=2).params, program="p", hints=hints))
    desk.loop.receive()
    assert [request.origin for request in desk.loop.live[-2:]] == [Origin("p", hints), None]


def test_a_scored_prompt_is_claimed_without_its_choice():
    harness = make_harness()
    request = asks([*tokens(1), 33], max_tokens=0, logprob_start=20)
    request.origin = Origin("p", Hints(), goes_on_at=20)
    other = make_request([*tokens(1), 34, 35], max_tokens=0, logprob_start=20)
    harness.run(request, other)
    tree = harness.loop.scheduler.memory.tree
    assert tree.match(tokens(1)).node.needs == 1
    assert tree.match([*tokens(1), 33]).node.needs == 0


def test_a_prompt_is_kept_until_its_time_is_over():
    harness = make_harness()
    now = [100.0]
    harness.loop.scheduler.memory.programs._clock = lambda: now[0]
    harness.run(asks(tokens(1), None, keep=5.0, max_tokens=0))
    harness.run(asks(tokens(2), "live"), make_request(tokens(3), ignore_eos=True))
    now[0] = 104.9
    squeeze(harness, 2 * 27)
    assert [cached(harness, tokens(first)) for first in (1, 2, 3)] == [20, 0, 0]
    harness.run(asks(tokens(2), "live"))
    now[0] = 105.0
    squeeze(harness, 20)
    assert [cached(harness, tokens(first)) for first in (1, 2, 3)] == [0, 20, 0]


def test_a_client_that_leaves_takes_its_claims_along():
    harness = make_harness()
    harness.run(asks(tokens(1), "p"), asks(tokens(2), "q"))
    assert Standing.NEEDED in standings(harness)
    harness.loop.ended(b"")
    harness.step()
    assert set(standings(harness)) == {Standing.UNKNOWN, Standing.ENDED}
    assert not harness.loop.scheduler.memory.programs._programs


def test_an_end_that_overtakes_its_request_leaves_nothing_behind():
    harness = make_harness()
    request = asks(tokens(1))
    harness.loop.submit([request])
    harness.step()
    told(harness, "p")
    harness.run()
    assert harness.output(request) == continuation(request.prompt, 8, ignore_eos=True)
    assert Standing.NEEDED not in standings(harness)
    told(harness, "p")  # not known any more
    told(harness, "nobody", (0, 1))


def test_random_programs_under_pressure():
    """Right answers, right counts, and no claim that outlives its program."""
    for seed in range(6):
        rng = random.Random(seed)
        harness = make_harness(pages=220, max_context=120, max_running=6, chunk_tokens=8)
        programs = {f"p{number}": {(): tokens(1 + number, 24)} for number in range(8)}
        for _ in range(60):
            name = rng.choice(list(programs))
            texts = programs[name]
            branch = rng.choice(list(texts))
            match rng.randrange(6):
                case 0 if len(branch) < 6:
                    fork = (*branch, rng.randrange(4))
                    for index in range(3):
                        if (*fork, index) not in texts:
                            texts[*fork, index] = [*texts[branch], 1 + index]
                case 1 if branch:
                    harness.loop.ended(b"", name, branch)
                    for key in [key for key in texts if key[: len(branch)] == branch]:
                        del texts[key]
                case _ if len(texts[branch]) < 90:
                    fan_out = 3 if branch else 1
                    request = asks(
                        texts[branch], name, branch, fan_out=fan_out, max_tokens=rng.randrange(9)
                    )
                    harness.loop.submit([request])
                    for _ in range(rng.randrange(30)):
                        harness.step()
                    if harness.ended(request):
                        texts[branch] = [*request.tokens, rng.randrange(1, 50)]
        harness.run()
        for request, updates in harness.updates.items():
            right = continuation(request.prompt, request.params.max_tokens, ignore_eos=True)
            assert harness.output(request) == right, updates
        assert harness.loop.scheduler.memory.evicted > 300
        for name in programs:
            told(harness, name)
        counts = harness.loop.scheduler.memory.programs
        assert (counts._programs, counts._places) == ({}, 0)
        assert set(standings(harness)) <= {Standing.UNKNOWN, Standing.ENDED}


def test_too_many_branches_are_not_kept_count_of(monkeypatch):
    monkeypatch.setattr("branchline.runtime.programs.MOST_PLACES", 3)
    programs = Programs(RadixTree())
    for index in range(50):
        programs.arrived(asks([1], branch=(0, index), fan_out=50))
    assert programs._places == 3
    programs.ended(b"", "p")
    assert programs._places == 0


# -------------------------------------------------------------------------------- the wire


@pytest.mark.parametrize(
    ("program", "hints", "named"),
    [
        ("", None, "program="),
        ("x" * 129, None, "1 to 128"),
        (None, Hints(branch=(0, 0)), "of which program"),
    ],
)
def test_advice_that_breaks_a_rule_is_refused(program, hints, named):
    message = Generate("r", (("program", "x"),), program=program, hints=hints)
    assert named in refusal(Desk(), message).message


@pytest.mark.parametrize(
    "fields",
    [
        {"branch": (0,)},
        {"branch": (0, -1)},
        {"branch": (0, 0) * 65},
        {"branch": (0, 3), "fan_out": 3},
        {"fan_out": 1 << 20},
        {"keep": -1.0},
        {"keep": float("nan")},
    ],
)
def test_hints_out_of_range_cannot_be_made(fields):
    with pytest.raises(ValueError, match=next(reversed(fields)) + "="):
        Hints(**fields)


def test_an_end_reaches_the_loop_and_answers_nothing():
    desk = Desk()
    desk.tell(Ended("p", (0, 1)))
    desk.service.forget(b"client a")
    desk.loop.receive()
    assert desk.loop.ends == [(b"client a", "p", (0, 1)), (b"client a", None, ())]
    assert desk.take() == []
    assert PIN > 1


def test_programs_tell_a_real_runtime_and_leave_nothing_behind(smollm2_path):
    @bl.function
    def program(s, subject):
        s += f"About {subject}:" + bl.gen("start", max_tokens=4)
        forks = s.fork(3)
        forks += bl.gen("more", max_tokens=4)
        forks += bl.select("good", [" yes", " no"])
        best = forks[1]
        forks.join()
        inner = best.fork(2)
        inner += bl.gen("end", max_tokens=3, n=2)
        inner.join()
        s += "So" + bl.gen("end", max_tokens=3)

    with bl.Engine(str(smollm2_path), check_invariants=True, kv_memory="64MiB") as engine:
        heard = []
        programs = engine._loop.scheduler.memory.programs
        programs.ended = lambda *end: heard.append(end) or Programs.ended(programs, *end)
        subjects = [("tea",), ("rain",), ("chess",)]
        for state in program.run_batch(subjects, backend=engine, temperature=0):
            assert state["start"]
        for _ in range(500):  # the last end may still be on its way
            if not programs._programs:
                break
            eventloop.run(engine.info())
        assert (programs._programs, programs._places) == ({}, 0)
        ends = [(run, branch) for _, run, branch in heard]
        runs = {run for run, _ in ends}
        assert len(runs) == 3
        for run in runs:
            ours = [branch for name, branch in ends if name == run]
            assert {(0, 0), (0, 1), (0, 2)} <= set(ours)
        tree = engine._loop.scheduler.memory.tree
        assert all(node.needs == 0 for root in tree._roots.values() for node in subtree(root))
