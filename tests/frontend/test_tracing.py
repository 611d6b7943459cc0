from __future__ import annotations

import asyncio

import pytest

import branchline as bl
from branchline.errors import InvalidRequest
from branchline.nodes import Argument, Gen, RoleBegin, RoleEnd, Text
from branchline.protocol import ChoiceScore

from .fake_backend import CHATML, FakeBackend

SYSTEM = "<|im_start|>system\nBe brief.<|im_end|>\n"


@bl.function
def program(s, question, shots="none"):
    s += bl.system("Be brief.")
    with s.user():
        s += "Q: " + question
    s += bl.assistant(bl.gen("x"))
    forks = s.fork(2)
    forks += lambda i: f"{i}" + bl.gen("y")
    s += s["x"] + "never said"


def test_a_trace_has_what_comes_before_an_answer_is_needed() -> None:
    backend = FakeBackend(template=CHATML)
    trace = program.trace(backend=backend)
    assert trace.prefix == SYSTEM + "<|im_start|>user\nQ: "
    assert trace.pieces[0] == ("template", "<|im_start|>system\n")
    assert [*map(type, trace.nodes)] == [
        RoleBegin, Text, RoleEnd, RoleBegin, Text, Argument, RoleEnd, RoleBegin, Gen, RoleEnd,
    ]  # fmt: skip
    assert [branch.nodes[0] for branch in trace.branches] == [Text("0"), Text("1")]
    assert isinstance(trace.stopped, bl.ProgramError)
    assert str(trace).splitlines()[-2:] == [
        "    Text(text='1')",
        f"    {trace.branches[1].nodes[1]!r}",
    ]
    assert backend.requests == []


def test_arguments_that_are_given_are_part_of_it() -> None:
    for trace in (program.trace("why?"), program.bind(question="why?").trace()):
        assert trace.prefix == "SYSTEM:Be brief.\nUSER:Q: why?\nASSISTANT:"
    with pytest.raises(TypeError, match="stranger"):
        program.trace(stranger=1)


def test_an_argument_has_no_text_and_nothing_goes_on_without_it() -> None:
    ran = []

    @bl.function
    def counting(s, question, shots):
        s += "A" + question
        ran.append("before")
        s += f"{question}"
        ran.append("after")

    trace = counting.trace()
    assert (trace.prefix, ran) == ("A", ["before"])
    assert isinstance(trace.stopped, TypeError)
    assert counting.trace("q", 1).stopped is None

    @bl.function
    def looping(s, questions):
        s += "B"
        for question in questions:
            s += question

    assert looping.trace().prefix == "B"


def test_an_async_program_and_a_method_are_traced() -> None:
    class Asker:
        @bl.function
        async def ask(self, s, question):
            s += "Q: " + question + bl.gen("x")
            await s["x"]

    async def main():
        return Asker().ask.trace()

    for trace in (Asker().ask.trace(), asyncio.run(main())):
        assert trace.prefix == "Q: "
        assert len(trace.nodes) == 3


def test_cache_computes_the_prefix_and_says_how_long_to_keep_it() -> None:
    backend = bl.Mock(template=CHATML)
    tokens = program.cache(backend, expiry=60)
    (request,) = backend.requests
    assert backend.prompts == [SYSTEM + "<|im_start|>user\nQ: "]
    assert (request.params.max_tokens, request.hints.keep) == (0, 60)
    with bl.using(backend):
        state = program.run("what")
    state.sync()
    assert state.get_meta_info("x")["cached_tokens"] >= tokens - 1 > 0
    with pytest.raises(InvalidRequest, match="keep=-1"):
        program.cache(backend, expiry=-1)
    with pytest.raises(InvalidRequest, match="set_default_backend"):
        program.cache()
    assert bl.function(lambda s, q: s.__iadd__(q)).cache(backend) == 0


def test_a_backend_in_use_comes_before_the_default_and_only_here() -> None:
    inner, outer, default = bl.Mock("inner"), bl.Mock("outer"), bl.Mock("default")
    ask = bl.function(lambda s: s.__iadd__("a" + bl.gen("x")))
    bl.set_default_backend(default)
    try:
        with bl.using(outer):
            with bl.using(inner):
                assert ask.run()["x"] == "inner"
            assert ask.run()["x"] == "outer"
            assert ask.run(backend=inner)["x"] == "inner"
        assert ask.run()["x"] == "default"
    finally:
        bl.set_default_backend(None)


class Hinted(FakeBackend):
    """Keeps what it is told of branches that end."""

    def __init__(self) -> None:
        super().__init__("ok")
        self.over = []

    def ended(self, program, branch=()):
        self.over.append((program, branch))


def test_the_runtime_is_told_who_asks_and_who_will_ask_no_more() -> None:
    def body(s):
        s += "a" + bl.gen("x")
        forks = s.fork(2)
        inner = forks[1].fork(3)
        inner += bl.gen("y")
        inner.join()
        s += bl.select("z", ["b"])

    backend = Hinted()
    backend._scores = {"b": ChoiceScore((1,), (-1.0,))}
    states = bl.function(body).run_batch([{}, {}], backend=backend)
    of_run = {}
    for request in backend.requests:
        place = (request.hints.branch, request.hints.fan_out)
        of_run.setdefault(request.program, []).append(place)
    assert len(of_run) == 2
    for run, places in of_run.items():
        branches = [(0, 1, 0, index) for index in range(3)]
        assert sorted(places) == sorted([((), 1), ((), 1), *((branch, 3) for branch in branches)])
        ends = [branch for program, branch in backend.over if program == run]
        let_go = [(0, 0), (0, 1)]  # nobody holds them when the body has returned
        assert [branch for branch in ends if branch not in let_go] == [*branches, ()]
    # A state that goes on after its program is a stranger.
    states[0].__iadd__(bl.gen("more"))
    states[0].sync()
    assert (backend.requests[-1].program, backend.requests[-1].hints) == (None, None)


def test_variables_that_are_there() -> None:
    backend = bl.Mock("ok", hold=True)

    def body(s):
        s["mine"] = 1
        s += "a" + bl.gen("x")
        return s.vars

    state = bl.function(body).run(backend=backend)
    assert state.ret_value == {"mine": 1}
    backend.release()
    state.sync()
    assert state.vars == {"mine": 1, "x": "ok"}
