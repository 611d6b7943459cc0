"""What the runtime is told of a program: its branches, its forks, and what has ended."""

from __future__ import annotations

import gc

import pytest

import branchline as bl
from branchline.hints import Hints

from .fake_backend import FakeBackend


class Listener(FakeBackend):
    """A backend that takes hints; `told` is what it heard, in order."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.told: list[tuple] = []

    async def _arrive(self, request):
        self.told.append(("asks", *(request.hints.branch if request.hints else ("nobody",))))
        await super()._arrive(request)

    def ended(self, program: str, branch=()) -> None:
        assert program.startswith("run-")
        self.told.append(("ended", *branch))


def test_requests_say_where_they_come_from():
    @bl.function
    def program(s):
        s += bl.gen("a")
        forks = s.fork(3)
        forks += bl.gen("b")
        forks[1].fork(1)[0].fork(2)[1].__iadd__(bl.gen("c"))
        s += bl.gen("d")
        return forks

    backend = Listener()
    program.run(backend=backend).sync()
    program.run(backend=backend).sync()
    hints = {request.hints.branch: request.hints for request in backend.requests if request.hints}
    assert hints == {
        (): Hints(),
        **{(0, k): Hints(branch=(0, k), fan_out=3) for k in range(3)},
        (0, 1, 0, 0, 0, 1): Hints(branch=(0, 1, 0, 0, 0, 1), fan_out=2),
    }
    assert len({request.program for request in backend.requests}) == 2


def test_joined_branches_have_ended():
    @bl.function
    def program(s):
        forks = s.fork(2)
        forks += bl.gen("x")
        forks.join()
        s += bl.gen("y")

    backend = Listener()
    program.run(backend=backend).sync()
    assert sorted(backend.told[:2]) == [("asks", 0, 0), ("asks", 0, 1)]
    assert sorted(backend.told[2:4]) == [("ended", 0, 0), ("ended", 0, 1)]
    assert backend.told[4:] == [("asks",), ("ended",)]


def test_what_is_cancelled_has_ended():
    @bl.function
    def program(s):
        forks = s.fork(2)
        forks[1].fork(1)
        forks.cancel()
        s += bl.gen("x")
        return forks

    backend = Listener()
    program.run(backend=backend).sync()
    assert ("ended", 0, 0) in backend.told
    assert ("ended", 0, 1) in backend.told


@pytest.mark.parametrize("batch", [False, True])
def test_a_run_ends_when_all_of_it_has_happened(soon, batch):
    """What is appended to its state later belongs to no program."""

    @bl.function
    def program(s):
        s += bl.gen("x")
        forks = s.fork(2)
        forks += bl.gen("y")
        return forks

    backend = Listener()
    state = program.run_batch([{}], backend=backend)[0] if batch else program.run(backend=backend)
    soon(lambda: wait_for(lambda: backend.told[-1:] == [("ended",)]))
    assert len(backend.requests) == 3
    state += bl.gen("z")
    state.sync()
    assert backend.told[-1] == ("asks", "nobody")


def wait_for(condition) -> None:
    while not condition():
        gc.collect()


def test_a_select_is_told_of_and_its_calibration_is_not():
    from branchline.protocol import ChoiceScore

    @bl.function
    def program(s):
        s += "x" + bl.select("y", ["a", "b"], calibration="n")

    scores = {choice: ChoiceScore((1,), (-1.0,)) for choice in "ab"}
    backend = Listener(scores=scores)
    program.run(backend=backend).sync()
    by_prompt = dict(zip(backend.prompts, backend.requests, strict=True))
    assert by_prompt["x"].hints == Hints()
    assert by_prompt["n"].hints is None
    assert by_prompt["n"].program is None


def test_forks_deeper_than_the_wire_has_them_go_on_unsaid():
    @bl.function
    def program(s):
        for _ in range(70):
            (s,) = s.fork(1)
        s += bl.gen("x")

    backend = Listener()
    program.run(backend=backend)
    backend.wait_for_requests(1)
    assert ("asks", "nobody") in backend.told


def test_branches_that_nobody_holds_have_ended_once_those_below_have():
    @bl.function
    def program(s):
        forks = s.fork(2)
        forks += bl.gen("x")
        best = forks[1].fork(2)
        best += bl.gen("y")
        best[0].sync()
        best[1].sync()
        del forks
        gc.collect()
        s += bl.gen("first")
        s.sync()
        del best
        gc.collect()
        s += bl.gen("second")

    backend = Listener()
    state = program.run(backend=backend)
    state.sync()
    own = [("ended", 0, 0), ("ended", 0, 1), ("asks",)]
    told = [each for each in backend.told if each in own]
    assert told == [("ended", 0, 0), ("asks",), ("ended", 0, 1), ("asks",)]


def test_a_branch_ends_where_the_last_one_lets_go_of_it():
    @bl.function
    def program(s):
        keep = s.fork(3)[1]
        gc.collect()
        keep += bl.gen("x")
        return keep

    backend = Listener()
    state = program.run(backend=backend)
    assert state.ret_value["x"] == "ok"
    told = {each for each in backend.told if each != ("ended",)}
    assert told == {("asks", 0, 1), ("ended", 0, 0), ("ended", 0, 2)}
