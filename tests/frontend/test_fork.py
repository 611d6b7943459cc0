# ruff: noqa: PLW2901 - a loop over branches appends to them with +=

from __future__ import annotations

import threading

import pytest

import branchline as bl
from branchline.errors import InvalidRequest, RequestAborted

from .fake_backend import CHATML, FakeBackend


def run(body, backend=None, **settings):
    backend = backend or FakeBackend(lambda text: text[-1:].upper())
    return bl.function(body).run(backend=backend, **settings), backend


def test_branches_go_on_from_the_fork_each_on_its_own() -> None:
    def body(s):
        s["before"] = 1
        s += "root "
        forks = s.fork(3)
        s += "parent"
        for i, branch in enumerate(forks):
            branch += f"{i}" + bl.gen("x")
        forks[0] += "!"
        forks[1]["y"] = "only here"
        assert [branch["before"] for branch in forks] == [1, 1, 1]
        assert "before" in forks[2]
        return forks

    state, backend = run(body)
    forks = state.ret_value
    assert [branch.text() for branch in forks] == ["root 00!", "root 11", "root 22"]
    assert state.text() == "root parent"
    assert sorted(backend.prompts) == ["root 0", "root 1", "root 2"]  # and none for the fork
    assert "y" not in forks[0]


def test_a_fork_does_not_wait_for_its_parent(soon) -> None:
    backend = FakeBackend(lambda text: text[-1:].upper(), gated=True)

    def body(s):
        s += "a" + bl.gen("x")
        forks = s.fork(2)
        forks += "b" + bl.gen("y")
        return forks

    state, _ = soon(lambda: run(body, backend))
    forks = state.ret_value
    assert len(backend.prompts) <= 1
    backend.open_gate()
    assert soon(forks[1].text) == "aAbB"
    assert (forks[0]["x"], forks[0]["y"], state["x"]) == ("A", "B", "A")
    assert forks[0].get_meta_info("x")["id"] == state.get_meta_info("x")["id"]


def test_branches_run_at_the_same_time() -> None:
    def body(s):
        forks = s.fork(16)
        forks += lambda i: f"{i}" + bl.gen("x")
        forks.join()

    _, backend = run(body, FakeBackend(delay=0.05))
    assert backend.most_alive == 16


@pytest.mark.parametrize("size", [0, 1, 3])
@pytest.mark.parametrize("start", ["", None])
def test_a_fork_of_an_empty_state_asks_nothing(size, start, soon) -> None:
    def body(s):
        if start is not None:
            s += start
        forks = s.fork(size)
        forks += "a" + bl.gen("x")
        forks.join()
        s += "after" + bl.gen("y")

    state, backend = soon(lambda: run(body))
    assert soon(state.text) == "afterR"
    assert backend.prompts == ["a"] * size + ["after"]
    if size:
        assert state["x"] == ["A"] * size
    else:
        with pytest.raises(KeyError):
            state["x"]


def test_a_fork_inside_a_turn_keeps_the_turn() -> None:
    def body(s):
        with s.user():
            s += "common "
            forks = s.fork(2)
            s += "parent"
        forks += ["left", "right"]
        forks += bl.user_end() + bl.assistant(bl.gen("x"))
        return forks

    state, backend = run(body, FakeBackend("ok", template=CHATML))
    for branch, word in zip(state.ret_value, ("left", "right"), strict=True):
        assert [message["content"] for message in branch.messages()] == [
            "Be kind.",
            f"common {word}",
            "ok",
        ]
    assert [message["content"] for message in state.messages()] == ["Be kind.", "common parent"]
    assert len(backend.requests) == 2


def test_nested_forks_and_joins_nest_lists() -> None:
    def body(s):
        outer = s.fork(2)
        for i, branch in enumerate(outer):
            branch += f"{i}"
            inner = branch.fork(3)
            inner += lambda j: f"{j}" + bl.gen("x")
            inner.join()
        outer.join()

    state, _ = run(body)
    assert state["x"] == [["0", "1", "2"]] * 2
    assert state.text() == ""


def test_join_gathers_new_variables_in_line() -> None:
    def body(s):
        s["old"] = "mine"
        forks = s.fork(3)
        forks += bl.gen("x")
        for branch in forks:
            branch["old"] = "theirs"
        forks[1]["sometimes"] = 1
        forks.join()

    state, _ = run(body, FakeBackend("v"))
    assert state["x"] == ["v"] * 3
    assert state["sometimes"] == [None, 1, None]
    assert state["old"] == "mine"
    assert [meta["completion_tokens"] for meta in state.get_meta_info("x")] == [1] * 3


def test_join_can_append_the_branches_texts() -> None:
    def body(s):
        s += "docs:"
        forks = s.fork(2)
        forks += lambda i: f" {i}=" + bl.gen("x") + ";"
        s += "|"
        forks.join(mode="concate_and_append")
        s += " end" + bl.gen("y")

    state, backend = run(body)
    assert state.text() == "docs:| 0==; 1==; endD"
    assert backend.requests[2].prompt == (
        ("program", "docs:| 0="),
        ("tokens", (ord("="),)),
        ("program", "; 1="),
        ("tokens", (ord("="),)),
        ("program", "; end"),
    )
    assert "x" not in state


def test_join_knows_two_modes() -> None:
    with pytest.raises(InvalidRequest, match="mode='other'"):
        run(lambda s: s.fork(1).join("other"))
    with pytest.raises(InvalidRequest, match="cannot be negative"):
        run(lambda s: s.fork(-1))


def test_copy_comes_back_as_lists_of_one() -> None:
    def body(s):
        s += "a"
        with s.copy() as t:
            t += "b" + bl.gen("x")

    state, _ = run(body)
    assert state["x"] == ["B"]
    assert state.text() == "a"


def test_a_group_is_a_sequence() -> None:
    def body(s):
        forks = s.fork(3)
        assert len(forks) == 3
        assert [*forks] == [forks[0], forks[1], forks[2]] == list(forks[:])
        assert forks[-1] is forks[2]
        assert forks.index(forks[1]) == 1
        forks += "same "
        forks += bl.gen("x")
        forks += lambda i: f" {i}"
        forks += ["a", "b", "c"]
        forks[0] += "!"
        with pytest.raises(InvalidRequest, match="2 expressions for a fork of 3"):
            forks += ["a", "b"]
        with pytest.raises(InvalidRequest, match="cannot be replaced"):
            forks[0] = forks[1]
        return forks

    state, _ = run(body, FakeBackend("v"))
    assert [branch.text() for branch in state.ret_value] == ["same v 0a!", "same v 1b", "same v 2c"]


def test_one_branch_that_fails_disturbs_no_other(soon) -> None:
    def reply(text):
        return RequestAborted("bad luck") if text.endswith("1") else "fine"

    def body(s):
        forks = s.fork(3)
        forks += lambda i: f"{i}" + bl.gen("x") + bl.gen("y")
        forks[0]["own"] = 1
        forks.join()
        s += "on" + bl.gen("z")
        return forks

    state, _ = soon(lambda: run(body, FakeBackend(reply)))
    assert soon(lambda: state["z"]) == "fine"
    assert state.text() == "onfine"
    forks = state.ret_value
    assert [branch.error() is None for branch in forks] == [True, False, True]
    assert forks[2]["y"] == "fine"
    for read in (lambda: state["x"], lambda: state["y"], lambda: forks[1]["y"]):
        with pytest.raises(bl.ProgramError, match="bad luck"):
            soon(read)
    # Where a branch failed before it named a variable, the list cannot be made either.
    with pytest.raises(bl.ProgramError, match="bad luck"):
        soon(lambda: state["own"])


def test_appending_a_branch_that_failed_fails_the_state(soon) -> None:
    def body(s):
        forks = s.fork(2)
        forks += lambda i: f"{i}" + bl.gen("x")
        forks.join("concate_and_append")
        s += bl.gen("z")

    state, _ = run(body, FakeBackend(lambda text: RequestAborted("no") if text == "1" else "f"))
    with pytest.raises(bl.ProgramError, match="no"):
        soon(lambda: state["z"])


def test_children_of_a_state_that_failed_have_its_error(soon) -> None:
    def body(s):
        s += bl.gen("x")
        forks = s.fork(2)
        forks += bl.gen("y")
        return forks

    state, backend = run(body, FakeBackend(RequestAborted("gone")))
    for branch in state.ret_value:
        with pytest.raises(bl.ProgramError, match="gone"):
            soon(lambda branch=branch: branch["y"])
        with pytest.raises(bl.ProgramError, match="gone"):
            soon(branch.text)
    assert len(backend.requests) == 1


def test_forks_use_no_threads() -> None:
    backend = FakeBackend(gated=True)

    def body(s):
        states = [s]
        for _ in range(4):
            states = [branch for state in states for branch in state.fork(2)]
            for state in states:
                state += "a" + bl.gen("x")
        return states

    bl.function(lambda s: s.__iadd__("")).run(backend=backend).sync()  # starts the loop's thread
    before = threading.active_count()
    state, _ = run(body, backend)
    assert threading.active_count() == before
    backend.open_gate()
    assert {leaf.text() for leaf in state.ret_value} == {"aok" * 4}
    assert len(backend.requests) == 30
