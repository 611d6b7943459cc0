# ruff: noqa: PLW2901 - a loop over branches appends to them with +=

from __future__ import annotations

import threading
import time

import pytest

import branchline as bl
from branchline.batch import MIN_AUTO_THREADS, pool_size
from branchline.errors import InvalidRequest, RequestAborted

from .fake_backend import FakeBackend


@bl.function
def ask(s, question, delay=0.0):
    time.sleep(delay)
    s += question + "=" + bl.gen("answer")


def echo(text):
    return text.removesuffix("=").upper()


def test_results_are_in_the_order_of_the_items_and_inputs_stay_as_they_are() -> None:
    batch = [{"question": "a", "delay": 0.1}, {"question": "b"}, ("c",), ["d", 0.0]]
    before = [dict(batch[0]), dict(batch[1]), ("c",), ["d", 0.0]]
    states = ask.bind(delay=0.01).run_batch([batch[0]], backend=FakeBackend(echo))
    states = ask.run_batch(batch, backend=FakeBackend(echo))
    assert [state["answer"] for state in states] == ["A", "B", "C", "D"]
    assert batch == before


def test_the_body_runs_once_for_each_item() -> None:
    calls = []

    @bl.function
    def program(s, i):
        calls.append(i)
        s += "same prefix" + bl.gen("x")

    backend = FakeBackend()
    program.run_batch([{"i": i} for i in range(10)], backend=backend)
    assert sorted(calls) == list(range(10))
    assert len(backend.requests) == 10


def test_one_items_error_disturbs_no_other(soon) -> None:
    @bl.function
    def program(s, i):
        s += f"{i}" + bl.gen("x")
        if i == 1:
            raise ZeroDivisionError("body of 1")
        s += bl.gen("y")

    def reply(text):
        return RequestAborted("model of 2") if text.startswith("2") else "ok"

    states = soon(lambda: program.run_batch([(i,) for i in range(4)], backend=FakeBackend(reply)))
    assert [state.error() is None for state in states] == [True, False, False, True]
    assert states[3].text() == "3okok"
    assert states[1]["x"] == "ok"
    for read in (lambda: states[1]["y"], states[1].text, lambda: states[1].ret_value):
        with pytest.raises(bl.ProgramError, match="body of 1") as caught:
            soon(read)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    with pytest.raises(bl.ProgramError, match="model of 2"):
        soon(lambda: states[2]["y"])


def test_wrong_arguments_are_refused_before_anything_runs() -> None:
    backend = FakeBackend()
    with pytest.raises(TypeError):
        ask.run_batch([("a",), ("a", 0.0, "one too many")], backend=backend)
    with pytest.raises(TypeError, match="stream"):
        ask.run_batch([("a",)], backend=backend, stream=True)
    with pytest.raises(InvalidRequest, match="num_threads=0"):
        ask.run_batch([("a",)], backend=backend, num_threads=0)
    assert backend.requests == []


def test_no_items_no_results() -> None:
    backend = FakeBackend()
    assert ask.run_batch([], backend=backend) == []
    assert [*ask.run_batch([], backend=backend, generator_style=True)] == []


def test_generator_style_keeps_the_order_and_needs_only_what_comes_before() -> None:
    go = threading.Event()

    @bl.function
    def program(s, i):
        if i == 2:
            assert go.wait(5)
        s += f"{i}"

    states = program.run_batch(
        [(i,) for i in range(300)], backend=FakeBackend(), generator_style=True
    )
    assert next(states).text() == "0"
    assert next(states).text() == "1"
    go.set()
    assert [state.text() for state in states] == [f"{i}" for i in range(2, 300)]


def test_results_as_completed() -> None:
    go = threading.Event()

    @bl.function
    def program(s, i):
        if i == 0:
            assert go.wait(5)
        s += f"{i}"

    results = program.run_batch([(0,), (1,)], backend=FakeBackend(), as_completed=True)
    index, state = next(results)
    assert (index, state.text()) == (1, "1")
    go.set()
    assert [(index, state.text()) for index, state in results] == [(0, "0")]


def test_closing_the_results_leaves_the_rest_undone() -> None:
    calls = []

    @bl.function
    def program(s, i):
        calls.append(i)
        time.sleep(0.01)

    results = program.run_batch(
        [(i,) for i in range(100)], backend=FakeBackend(), num_threads=1, generator_style=True
    )
    next(results)
    results.close()
    time.sleep(0.1)
    assert len(calls) < 10


def test_a_progress_bar_on_request(capsys) -> None:
    ask.run_batch([("a",)] * 3, backend=FakeBackend(), progress_bar=True)
    assert "3/3" in capsys.readouterr().err
    ask.run_batch([("a",)] * 3, backend=FakeBackend())
    assert capsys.readouterr().err == ""


def test_items_draw_from_seeds_of_their_own() -> None:
    def seeds(seed):
        backend = FakeBackend()
        ask.run_batch([("a",)] * 4, backend=backend, seed=seed)
        return sorted(request.params.seed for request in backend.requests)

    assert seeds(3) == seeds(3)
    assert len({*seeds(3), *seeds(4)}) == 8


def test_the_size_of_the_pool() -> None:
    assert pool_size("auto", 5) == 5
    assert pool_size("auto", 10**6) >= MIN_AUTO_THREADS
    assert pool_size(3, 100) == 3
    assert pool_size("auto", 0) == 1
    with pytest.raises(InvalidRequest, match="'many'"):
        pool_size("many", 1)


def test_many_forks_use_only_the_pools_threads() -> None:
    most = []
    before = threading.active_count()

    @bl.function
    def tree(s, i):
        s += f"{i}"
        leaves = [s]
        for _ in range(4):
            leaves = [branch for leaf in leaves for branch in leaf.fork(2)]
            for leaf in leaves:
                leaf += "-" + bl.gen("x")
        most.append(threading.active_count())
        return [leaf.text() for leaf in leaves]

    backend = FakeBackend(delay=0.01)
    states = tree.run_batch([(i,) for i in range(64)], backend=backend, num_threads=64)
    assert len(backend.requests) == 64 * 30
    assert states[5].ret_value == ["5" + "-ok" * 4] * 16
    assert max(most) <= before + 64 + 1  # the pool and the loop


@pytest.mark.parametrize("kind", ["threads", "async"])
def test_items_begin_no_further_ahead_than_results_are_taken(kind, soon) -> None:
    begun = []

    @bl.function
    def program(s, i):
        begun.append(i)
        s += f"{i}"

    @bl.function
    async def async_program(s, i):
        begun.append(i)
        s += f"{i}"

    chosen = program if kind == "threads" else async_program
    states = chosen.run_batch(
        [(i,) for i in range(100)], backend=FakeBackend(), num_threads=2, generator_style=True
    )
    assert soon(lambda: next(states)).text() == "0"
    time.sleep(0.1)
    assert len(begun) <= 5
    assert [state.text() for state in soon(lambda: [*states])] == [f"{i}" for i in range(1, 100)]
