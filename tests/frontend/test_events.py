"""`state.events()`: everything that happens, once, in order, as it happens."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import branchline as bl
from branchline.events import (
    Failed,
    Forked,
    Joined,
    RoleBegan,
    RoleEnded,
    TextAdded,
    Used,
    VariableDelta,
    VariableEnded,
    VariableStarted,
)

TEXTS = (TextAdded, RoleBegan, RoleEnded, VariableDelta)


def run(body, mock=None, **arguments):
    return bl.function(body).run(backend=mock or bl.Mock("one two"), **arguments)


def kinds(state) -> list[str]:
    return [type(event).__name__ for event in state.events()]


def text_of(events, branch=()) -> str:
    return "".join(e.text for e in events if isinstance(e, TEXTS) and e.branch == branch)


def test_a_gen_and_a_select_in_turns() -> None:
    def body(s):
        s += bl.user("Hi")
        s += bl.assistant(bl.gen("x", max_tokens=8))
        s += bl.select("y", ["yes", "no"])

    state = run(body)
    assert kinds(state) == [
        *("RoleBegan", "TextAdded", "RoleEnded", "RoleBegan"),
        *("VariableStarted", "Used", "VariableDelta", "VariableEnded", "RoleEnded"),
        *("VariableStarted", "Used", "VariableDelta", "VariableEnded"),
    ]
    events = list(state.events())
    assert [e.role for e in events if isinstance(e, RoleBegan)] == ["user", "assistant"]
    gen, select = [e for e in events if isinstance(e, VariableStarted)]
    assert (gen.name, gen.kind, gen.settings) == ("x", "gen", {"max_tokens": 8})
    assert gen.site.file == __file__
    assert (select.name, select.kind, select.settings["choices"]) == ("y", "select", ("yes", "no"))
    ends = [e for e in events if isinstance(e, VariableEnded)]
    assert [(e.name, e.value) for e in ends] == [("x", "one two"), ("y", "yes")]
    assert [e.meta for e in ends] == [state.get_meta_info("x"), state.get_meta_info("y")]
    assert text_of(events) == state.text()


def test_deltas_come_as_the_model_writes_if_the_run_streams() -> None:
    def body(s):
        s += "Q:" + bl.gen("x", stop="!") + "." + bl.gen("y")

    mock = bl.Mock(["one, two! three", bl.Reply(["a b", " c"])])
    state = run(body, mock, stream=True)
    deltas = [(e.name, e.text) for e in state.events() if isinstance(e, VariableDelta)]
    shown = [*(("x", t) for t in ("one", ",", " two")), ("y", "a b"), ("y", " c")]
    assert deltas == shown
    assert text_of(state.events()) == "Q:one, two.a b c"


def test_they_come_as_they_happen(soon) -> None:
    mock = bl.Mock("x", hold=True)

    def body(s):
        s += "Q:" + bl.gen("x")

    events = iter(run(body, mock, stream=True).events())
    assert soon(lambda: [type(next(events)) for _ in range(2)]) == [TextAdded, VariableStarted]
    mock.release()
    assert soon(lambda: [type(e) for e in events]) == [VariableDelta, Used, VariableEnded]


def test_on_an_event_loop() -> None:
    def body(s):
        s += "Q:" + bl.gen("x")

    async def main():
        state = run(body, stream=True)
        return [event async for event in state.events()], list(state.events())

    asynchronous, synchronous = asyncio.run(main())
    assert asynchronous == synchronous
    assert text_of(asynchronous) == "Q:one two"


def test_forks_and_joins() -> None:
    def body(s):
        s += "Q:" + bl.gen("x")
        branches = s.fork(2)
        branches += lambda i: f" {i}:" + bl.gen("y")
        s += "!"
        branches.join()
        again = branches[1].fork(1)
        again += "deep"
        again.join("concate_and_append")

    state = run(body)
    events = list(state.events())
    forks = [(e.branch, e.ordinal, e.size) for e in events if isinstance(e, Forked)]
    assert forks == [((), 0, 2), ((0, 1), 0, 1)]
    joins = [(e.branch, e.mode, e.names) for e in events if isinstance(e, Joined)]
    assert joins == [((), "gather_variable", ("y",)), ((0, 1), "concate_and_append", ())]
    assert text_of(events, (0, 0)) == " 0:one two"
    assert text_of(events, (0, 1)) == " 1:one twodeep"
    assert text_of(events) == state.text() == "Q:one two!"


def test_a_branch_has_its_own_events_and_those_below() -> None:
    found = {}

    def body(s):
        s += "Q:"
        branches = s.fork(2)
        branches += ["0", "1"]
        deeper = branches[1].fork(2)
        deeper += bl.gen("x")
        found["branch"] = branches[1]

    run(body).sync()
    branches = [event.branch for event in found["branch"].events()]
    assert set(branches) == {(0, 1), (0, 1, 0, 0), (0, 1, 0, 1)}
    assert branches[:2] == [(0, 1), (0, 1)]


def test_the_events_of_a_program_include_branches_that_nobody_joined(soon) -> None:
    mock = bl.Mock("x", hold=True)

    def body(s):
        s += "Q:"
        branches = s.fork(2)
        branches += bl.gen("x")

    state = run(body, mock)
    mock.wait_for_requests(2)
    mock.release()
    assert soon(lambda: kinds(state)).count("VariableEnded") == 2


def test_scopes_and_unnamed_gens() -> None:
    def body(s):
        with s.var_scope("all"):
            s += "a" + bl.gen()

    events = list(run(body).events())
    assert [(e.name, e.kind, e.text) for e in events if isinstance(e, VariableEnded)] == [
        (None, "gen", "one two"),
        ("all", "scope", "aone two"),
    ]
    assert text_of(events) == "aone two"


def test_errors() -> None:
    def body(s):
        s += "a" + bl.gen("x") + "b" + bl.gen("y") + "c"

    mock = bl.Mock(["one", ConnectionError("gone")])
    state = run(body, mock)
    events = list(state.events())
    assert [type(e) for e in events[-3:]] == [VariableStarted, Used, Failed]
    used, failed = events[-2:]
    assert used.error == "ConnectionError: gone"
    assert failed.error is state.error()


def test_an_error_of_the_body() -> None:
    def body(s):
        s += "a"
        raise ZeroDivisionError("oops")

    state = run(body, stream=True)
    with pytest.raises(bl.ProgramError, match="oops"):
        state.sync()
    assert kinds(state) == ["TextAdded", "Failed"]


def test_what_a_request_cost() -> None:
    def body(s):
        s += "a b c" + bl.gen("x") + " d" + bl.gen("y", n=2)

    events = run(body).events()
    used = [e for e in events if isinstance(e, Used)]
    counts = [(e.prompt_tokens, e.cached_tokens, e.generated_tokens) for e in used]
    assert counts == [(3, 0, 3), (12, 10, 6)]  # of n texts each is a sequence of its own


PIECES = st.recursive(
    st.sampled_from(["t", "g", "s", "u"]),
    lambda inner: st.lists(st.lists(inner, max_size=3), min_size=1, max_size=3),
    max_leaves=12,
)


def append(s, pieces) -> None:
    """Carry out a random program: text, gen, select, a turn; a list is a fork that is joined."""
    for piece in pieces:
        match piece:
            case "t":
                s += "text "
            case "g":
                s += bl.gen("g")
            case "s":
                s += bl.select("s", ["yes", "no"])
            case "u":
                s += bl.user("turn")
            case _:
                branches = s.fork(len(piece))
                for branch, inner in zip(branches, piece, strict=True):
                    append(branch, inner)
                branches.join("concate_and_append")


@settings(max_examples=40, deadline=None)
@given(st.lists(PIECES, max_size=6), st.booleans())
def test_the_texts_of_events_are_the_text(pieces, stream) -> None:
    def body(s):
        s += "start "
        append(s, pieces)

    state = run(body, bl.Mock("one two three"), stream=stream)
    events = list(state.events())
    assert text_of(events) == state.text()
    known = {()}
    for event in events:  # nothing happens in a branch before its fork
        assert event.branch in known
        if isinstance(event, Forked):
            known |= {(*event.branch, event.ordinal, index) for index in range(event.size)}
    started = [e.branch for e in events if isinstance(e, VariableStarted)]
    assert len(started) == len([e for e in events if isinstance(e, VariableEnded)])
    for branch in known:
        times = [event.at for event in events if event.branch == branch]
        assert times == sorted(times)


def test_a_text_that_is_no_value_of_its_type() -> None:
    def body(s):
        s += "a" + bl.gen("x", type=int) + bl.gen("y", type=int)

    state = run(body, bl.Mock(["many", "7"]))
    first, second = [e for e in state.events() if isinstance(e, VariableEnded)]
    assert (first.text, first.value, type(first.error.__cause__)) == ("many", None, bl.InvalidValue)
    assert (second.text, second.value, second.error) == ("7", 7, None)
    assert state.text() == "amany7"


def test_reasoning_that_is_kept_apart() -> None:
    def body(s):
        s += "a" + bl.separate_reasoning(bl.gen("x"))

    state = run(body, bl.Mock("<think>hm</think>yes"), stream=True)
    events = list(state.events())
    assert text_of(events) == state.text() == "ayes"
    ended = {e.name: (e.kind, e.text) for e in events if isinstance(e, VariableEnded)}
    assert ended == {"x": ("gen", "yes"), "x_reasoning_content": ("reasoning", "hm")}
    assert state.trace()["state"]["steps"][2]["text"] == "hm"


def test_each_attempt_is_a_request() -> None:
    def body(s):
        s += "a" + bl.gen("x", retry=bl.Retry(delay=0))

    state = run(body, bl.Mock([bl.RuntimeUnavailable("busy"), "yes"]))
    used = [e for e in state.events() if isinstance(e, Used)]
    assert [e.error for e in used] == ["RuntimeUnavailable: busy", None]
    assert state.usage["x"].requests == 2
    assert [e.text for e in state.events() if isinstance(e, VariableDelta)] == ["yes"]


def test_a_cancelled_request_is_given_up(soon) -> None:
    mock = bl.Mock("x", hold=True)

    def body(s):
        s += "a" + bl.gen("x")

    state = run(body, mock)
    mock.wait_for_requests(1)
    state.cancel()
    events = soon(lambda: list(state.events()))
    assert [e.error for e in events if isinstance(e, Used)] == ["aborted"]
    assert len(mock.aborted) == 1


def test_events_of_an_async_program() -> None:
    async def body(s):
        s += "Q:" + bl.gen("x")
        branches = s.fork(2)
        branches += bl.gen("y")
        await branches.join()

    async def main():
        state = bl.function(body).start(backend=bl.Mock("one two"), stream=True)
        return [event async for event in state.events()]

    events = asyncio.run(main())
    assert text_of(events) == "Q:one two"
    assert text_of(events, (0, 1)) == "one two"
    assert [e.names for e in events if isinstance(e, Joined)] == [("y",)]
