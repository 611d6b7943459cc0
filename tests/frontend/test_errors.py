from __future__ import annotations

import inspect

import pytest

import branchline as bl
from branchline.errors import InvalidRequest, RuntimeUnavailable
from branchline.protocol import ChoiceScore, Update

from .fake_backend import FakeBackend


def run(body, backend, **settings):
    return bl.function(body).run(backend=backend, **settings)


def test_a_gen_that_fails_raises_where_it_is_read_with_its_line(soon) -> None:
    def reply(text):
        return RuntimeUnavailable("lost the runtime") if text.endswith("then ") else "fine "

    @bl.function
    def story(s):
        s += "first " + bl.gen("a")
        s += "then "
        s += bl.gen("b")  # the line of the error
        s += bl.gen("c") + "after"

    state = story.run(backend=FakeBackend(reply))
    for read in (lambda: state["b"], lambda: state["c"], state.text, state.sync, state.messages):
        with pytest.raises(bl.ProgramError) as caught:
            soon(read)
    error = caught.value
    source, first = inspect.getsourcelines(story.func)
    line = first + next(i for i, text in enumerate(source) if "the line of the error" in text)
    assert (error.site.file, error.site.line) == (__file__, line)
    assert (error.program, error.variable) == ("story", "b")
    assert error.prompt_tail == "first fine then "
    assert isinstance(error.__cause__, RuntimeUnavailable)
    assert str(error) == (
        f"{__file__}:{line}: program 'story', variable 'b': RuntimeUnavailable: "
        "lost the runtime (after the text 'first fine then ')"
    )
    # What had succeeded can be read.
    assert state["a"] == "fine "
    assert state.error() is error
    assert repr(state) == "ProgramState(first fine then )"
    assert "b" not in state


def test_nothing_after_a_failure_is_asked() -> None:
    backend = FakeBackend(RuntimeUnavailable("x"))
    state = run(lambda s: s.__iadd__(bl.gen("a") + bl.gen("b")), backend)
    assert state.error() is not None
    assert len(backend.requests) == 1


def test_a_name_that_a_failed_program_never_gave_raises_the_failure(soon) -> None:
    state = run(lambda s: s.__iadd__(bl.gen("a")), FakeBackend(RuntimeUnavailable("cause")))
    with pytest.raises(bl.ProgramError, match="cause"):
        soon(lambda: state["never"])
    with pytest.raises(bl.ProgramError, match="cause"):
        soon(lambda: state.get_meta_info("a"))


def test_appending_after_a_failure_does_not_hang(soon) -> None:
    def body(s):
        s += bl.gen("a")
        with pytest.raises(bl.ProgramError, match="cause"):
            s["a"]
        s += "more" + bl.gen("b")
        with s.user(), s.var_scope("v"):
            s += "x"
        with pytest.raises(bl.ProgramError, match="cause"):
            s["v"]
        with pytest.raises(bl.ProgramError, match="cause"):
            s["b"]

    state = soon(lambda: run(body, FakeBackend(RuntimeUnavailable("cause"))))
    assert "cause" in str(soon(state.error))


def test_an_error_is_raised_afresh_each_time() -> None:
    state = run(lambda s: s.__iadd__(bl.gen("a")), FakeBackend(RuntimeUnavailable("x")))

    def depth():
        with pytest.raises(bl.ProgramError) as caught:
            state.text()
        return len(caught.traceback)

    assert depth() == depth() == depth()


def test_a_select_that_fails_says_so(soon) -> None:
    scores = {"a": ChoiceScore((1,), (-1.0,)), "": ChoiceScore((), ())}
    state = run(lambda s: s.__iadd__(bl.select("x", ["a", ""])), FakeBackend(scores=scores))
    with pytest.raises(bl.ProgramError, match="'' has no tokens") as caught:
        soon(lambda: state["x"])
    assert isinstance(caught.value.__cause__, InvalidRequest)


def test_a_method_of_choice_that_raises_is_an_error_of_the_state(soon) -> None:
    class Broken(bl.ChoicesSamplingMethod):
        def __call__(self, **_):
            raise ZeroDivisionError("by zero")

    scores = {"a": ChoiceScore((1,), (-1.0,))}
    node = bl.select("x", ["a"], choices_method=Broken())
    state = run(lambda s: s.__iadd__(node), FakeBackend(scores=scores))
    with pytest.raises(bl.ProgramError, match="ZeroDivisionError: by zero"):
        soon(lambda: state["x"])


def test_a_generation_that_never_finishes_is_an_error(soon) -> None:
    class Cut(FakeBackend):
        async def generate(self, request):
            yield Update(request.rid, text="half", ids=(1,))

    state = run(lambda s: s.__iadd__(bl.gen("x")), Cut())
    with pytest.raises(bl.ProgramError, match="without finishing"):
        soon(lambda: state["x"])


def test_an_exception_in_the_body_is_the_callers() -> None:
    kept = []

    def body(s):
        kept.append(s)
        s += "a" + bl.gen("x")
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        run(body, FakeBackend())
    assert kept[0]["x"] == "ok"
    with pytest.raises(bl.ProgramError, match="mine") as caught:
        kept[0].text()
    assert caught.value.site.file == __file__


def test_without_a_backend_a_program_says_how_to_get_one() -> None:
    with pytest.raises(InvalidRequest, match="set_default_backend"):
        bl.function(lambda s: s.text()).run()
