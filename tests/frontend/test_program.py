from __future__ import annotations

import contextvars
import inspect
import subprocess
import sys

import pytest

import branchline as bl
from branchline.errors import RuntimeUnavailable

from .fake_backend import FakeBackend


@bl.function
def greet(s, name, punctuation="!"):
    """Say hello."""
    s += f"Hello {name}{punctuation}"


@pytest.fixture
def backend():
    fake = FakeBackend()
    bl.set_default_backend(fake)
    yield fake
    bl.set_default_backend(None)


def test_arguments_and_calls(backend) -> None:
    assert greet.run("Ann").text() == "Hello Ann!"
    assert greet("Ann", punctuation="?").text() == "Hello Ann?"
    assert greet.run(name="Ann").text() == "Hello Ann!"
    with pytest.raises(TypeError, match="name"):
        greet.run()
    with pytest.raises(TypeError, match="stranger"):
        greet.run("Ann", stranger=1)
    with pytest.raises(TypeError, match="name"):
        greet.run(stream=True)  # before anything runs


def test_a_program_looks_like_its_function() -> None:
    assert (greet.__name__, greet.__doc__) == ("greet", "Say hello.")
    assert greet.__wrapped__ is greet.func
    assert list(inspect.signature(greet.func).parameters) == ["s", "name", "punctuation"]
    assert repr(greet) == "<program greet(s, name, punctuation='!')>"


def test_the_decorator_may_be_called(backend) -> None:
    @bl.function()
    def program(s):
        s += "x"

    assert program.run().text() == "x"


def test_the_first_parameter_is_s() -> None:
    with pytest.raises(
        TypeError, match="first parameter of the program state_first must be named s"
    ):

        @bl.function
        def state_first(state, x):
            pass

    with pytest.raises(TypeError, match="has a yield"):

        @bl.function
        def pieces(s):
            yield


def test_methods_are_programs(backend) -> None:
    class Greeter:
        def __init__(self, word):
            self.word = word

        @bl.function
        def greet(self, s, name):
            s += f"{self.word} {name}"

    assert Greeter("Hi").greet.run("Bob").text() == "Hi Bob"
    assert Greeter("Ho").greet.bind(name="Bob").run().text() == "Ho Bob"
    assert [s.text() for s in Greeter("Hi").greet.run_batch([{"name": "A"}])] == ["Hi A"]


def test_bound_values_win(backend) -> None:
    bound = greet.bind(punctuation=".")
    assert bound.run("Ann", punctuation="?").text() == "Hello Ann."
    assert bound.bind(name="Bo").run().text() == "Hello Bo."
    assert greet.run("Ann").text() == "Hello Ann!"


def test_a_parameter_with_a_reserved_name_is_the_programs(backend) -> None:
    with pytest.warns(UserWarning, match="parameter named n, which is also a setting") as caught:

        @bl.function
        def sample(s, question, n=1):
            s += question * n + bl.gen("x")

    assert caught[0].filename == __file__
    state = sample.run(question="q", n=5)
    assert state.text() == "qqqqqok"
    assert backend.requests[0].params.n == 1
    # In a batch the items are the program's and the settings the sampler's: nothing is shadowed.
    (state,) = sample.run_batch([{"question": "q", "n": 2}], n=3)
    assert state.text() == "qqok"
    assert len(state["x"]) == 3


def test_a_program_may_run_programs(backend) -> None:
    @bl.function
    def outer(s):
        tips = [greet(name) for name in ("A", "B")]
        s += "".join(tip.text() for tip in tips)

    assert outer.run().text() == "Hello A!Hello B!"


def test_an_explicit_backend_comes_before_the_default(backend) -> None:
    other = FakeBackend("other")
    assert bl.function(lambda s: s.__iadd__(bl.gen("x"))).run(backend=other)["x"] == "other"
    assert backend.requests == []


def test_a_streaming_body_sees_its_callers_context() -> None:
    variable = contextvars.ContextVar("variable", default="unset")
    variable.set("the caller's")
    state = bl.function(lambda s: s.__iadd__(variable.get())).run(
        backend=FakeBackend(), stream=True
    )
    assert state.text() == "the caller's"


def test_a_state_goes_on_after_its_program(backend) -> None:
    state = greet.run("Ann")
    state += " More: " + bl.gen("x")
    assert state.text() == "Hello Ann! More: ok"


def test_every_public_name_is_there() -> None:
    lazy = {"Engine", "Runtime", "connect"}
    for name in set(bl.__all__) - lazy:
        assert getattr(bl, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        bl.nonsense  # noqa: B018 - the access is the test


def test_importing_the_language_loads_nothing_heavy() -> None:
    code = (
        "import sys, branchline\n"
        "print(*{'torch', 'numpy', 'transformers', 'zmq', 'branchline.runtime'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == ""


def test_a_nested_failure_keeps_its_first_cause(backend, soon) -> None:
    @bl.function
    def inner(s):
        s += bl.gen("x")

    @bl.function
    def outer(s):
        s += inner.run(backend=FakeBackend(RuntimeUnavailable("deep")))["x"]

    (state,) = soon(lambda: outer.run_batch([{}]))
    with pytest.raises(bl.ProgramError, match="deep") as caught:
        state.text()
    assert caught.value.program == "inner"
