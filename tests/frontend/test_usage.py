"""`state.usage`: what was counted where it was answered is what is summed up here."""

from __future__ import annotations

import pytest

import branchline as bl
from branchline import eventloop

DELAY = 0.05


def run(body, mock=None, **arguments):
    return bl.function(body).run(backend=mock or bl.Mock("one two"), **arguments)


def tree(s) -> None:
    s += "Tell me." + bl.gen("plan")
    branches = s.fork(2)
    branches += lambda i: f" Idea {i}:" + bl.gen("idea") + bl.select("good", ["yes", "no"])
    deeper = branches[1].fork(3)
    deeper += bl.gen("detail", n=2)
    deeper.join()
    branches.join()
    s += " So:" + bl.gen("answer")


def test_a_program_costs_what_the_backend_counted() -> None:
    mock = bl.Mock("one two three")
    usage = run(tree, mock).usage
    info = eventloop.run(mock.info())
    assert usage.requests == len(mock.requests) == 9
    assert usage.prompt_tokens == info.prompt_tokens
    assert usage.cached_tokens == info.cached_prompt_tokens
    assert usage.computed_tokens == info.computed_prompt_tokens
    assert usage.generated_tokens == info.generated_tokens


def test_each_gen_costs_what_its_meta_info_says() -> None:
    state = run(tree)
    for name in ("plan", "answer"):
        meta, usage = state.get_meta_info(name), state.usage[name]
        assert usage.prompt_tokens == meta["prompt_tokens"]
        assert usage.cached_tokens == meta["cached_tokens"]
        assert usage.generated_tokens == meta["completion_tokens"]
    assert [gen.name for gen in state.usage.gens] == ["plan", "answer"]
    with pytest.raises(KeyError):
        state.usage["idea"]


def test_forks_have_their_own() -> None:
    usage = run(tree).usage
    ((first, second),) = usage.forks
    assert [gen.name for gen in first.gens] == ["idea", "good"]
    assert first.forks == ()
    assert (second.requests, len(second.forks[0])) == (5, 3)
    assert second.forks[0][2].gens[0].branch == (0, 1, 0, 2)
    assert usage.requests == 2 + first.requests + second.requests
    below = sum(branch.prompt_tokens for branch in second.forks[0])
    assert second.prompt_tokens == below + sum(gen.prompt_tokens for gen in second.gens)


def test_a_branch_by_itself() -> None:
    seen = []

    def body(s):
        s += "a"
        branches = s.fork(2)
        branches += bl.gen("x")
        seen.append(branches[1].usage)

    (inside,) = seen if run(body).usage and seen else [None]
    assert inside.requests == 1
    assert inside["x"].generated_tokens == 3


def test_times() -> None:
    def body(s):
        s += "a" + bl.gen("x") + bl.gen("y")

    mock = bl.Mock(bl.Reply(["one", " two"], delay=DELAY, pause=DELAY))
    usage = run(body, mock, stream=True).usage
    for gen in usage.gens:
        assert DELAY <= gen.ttft < gen.seconds - DELAY / 2
        assert gen.seconds >= 2 * DELAY
    assert usage.seconds >= 4 * DELAY
    assert usage.ttft <= usage["x"].ttft + DELAY


def test_a_run_that_does_not_stream_sees_no_first_token() -> None:
    usage = run(tree).usage
    assert usage.ttft is None
    assert usage["plan"].ttft is None


def test_what_failed_is_counted_as_a_request() -> None:
    def body(s):
        s += "a" + bl.gen("x") + bl.gen("y")

    usage = run(body, bl.Mock(["one", OSError("no")])).usage
    assert (usage.requests, usage.generated_tokens) == (2, 2)
    assert usage["y"].prompt_tokens == 0


def test_it_prints_as_a_table() -> None:
    lines = str(run(tree).usage).splitlines()
    head = [*("requests", "prompt", "cached", "generated"), *("first", "token", "seconds")]
    assert lines[0].split() == head
    assert [line.split("  ")[0] for line in lines[1:]] == [
        *("plan", "answer", "idea [0.0]", "good [0.0]", "idea [0.1]", "good [0.1]"),
        *(f"detail [0.1/0.{i}]" for i in range(3)),
        "total",
    ]
    assert len({len(line) for line in lines}) == 1
