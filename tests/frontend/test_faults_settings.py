"""What a user can get wrong in a setting is refused by name, before anything is sent."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

import branchline as bl
from branchline.errors import InvalidRequest
from branchline.protocol import ChatTemplate, ModelCard
from branchline.sampling_params import SamplingParams

from .fake_backend import FakeBackend

WRONG: dict[str, list[Any]] = {
    "int": ["5", 2.5, None, True],
    "int | None": ["5", 2.5, True],
    "float": ["hot", None, True],
    "bool": ["no", None, 1],
    "tuple[str, ...]": ["text", ["list"], (3,), (None,)],
    "tuple[int, ...]": [5, [5], ("5",), (None,), (5.0,)],
    "dict[int, float]": [None, {"a": 1.0}, {1: "a"}, {None: 1.0}, {True: 1.0}],
    "Grammar | None": ["a+", ("regex", "a+"), {"kind": "regex", "source": "a"}, 3],
}


@pytest.mark.parametrize(
    ("name", "value"),
    [(field.name, value) for field in fields(SamplingParams) for value in WRONG[str(field.type)]],
)
def test_a_value_of_another_type_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"^{name}=.*must be") as caught:
        SamplingParams(**{name: value})  # type: ignore[arg-type]
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize(
    ("setting", "value", "says"),
    [
        ("max_tokens", 2.5, r"max_tokens=2\.5: must be an integer"),
        ("temperature", "hot", "temperature='hot': must be a number"),
        ("stop", 5, "stop=5: must be a tuple"),
        ("stop", [3], r"stop=\(3,\): must be a tuple of texts"),
        ("stop", "", "empty string"),
        ("stop", ["a", ""], "empty string"),
        ("stop", ["a"] * 65, "65 strings; at most 64"),
        ("stop", "x" * 1025, "1025 characters"),
        ("stop_token_ids", [None], r"stop_token_ids=\(None,\): must be a tuple of token ids"),
        ("stop_token_ids", 3, "stop_token_ids=3: must be a tuple"),
        ("logit_bias", [1], r"logit_bias=\[1\]: must be a dict"),
        ("logit_bias", {"a": 1}, "must be numbers by token id"),
    ],
)
def test_a_gen_is_refused_where_it_stands(setting: str, value: object, says: str) -> None:
    """Faults 30 and 33 in the language; an unset or empty list of stops is none."""
    backend = FakeBackend()

    @bl.function
    def program(s):
        s += "a" + bl.gen("x", **{setting: value})

    with pytest.raises(InvalidRequest, match=says):
        program.run(backend=backend)
    assert not backend.requests


@pytest.mark.parametrize("stop", [None, [], ()])
def test_no_stops_are_no_stops(stop: Any) -> None:
    @bl.function
    def program(s):
        s += "a" + bl.gen("x", stop=stop)

    backend = FakeBackend("fine")
    assert program.run(backend=backend)["x"] == "fine"
    assert backend.requests[0].params.stop == ()


DEFAULTS = {"temperature": 0.6, "top_k": 20, "top_p": 0.95}


@pytest.mark.parametrize("asked", [True, False])
def test_the_models_own_defaults_where_the_user_says_so(asked: bool) -> None:
    backend = FakeBackend()
    backend.card = ModelCard("fake", 0x110000, 4096, (0,), generation_defaults=DEFAULTS)

    @bl.function
    def program(s):
        s += "a" + bl.gen("x") + bl.gen("y", temperature=0)

    program.run(backend=backend, top_p=0.5, model_defaults=asked).sync()
    program.run_batch([{}], backend=backend, top_p=0.5, model_defaults=asked)
    expected = SamplingParams(top_p=0.5)
    if asked:
        expected = replace(expected, temperature=0.6, top_k=20)
    assert [request.params for request in backend.requests] == [
        expected,
        replace(expected, temperature=0),
    ] * 2


def test_roles_of_a_template_that_cannot_be_cut_are_refused_by_name() -> None:
    @bl.function
    def program(s):
        s += bl.user("Hi")

    backend = FakeBackend(template=ChatTemplate(prefix={}, suffix={}))
    with pytest.raises(bl.ProgramError, match=r"no turn of 'user'.*write its turns as text"):
        program.run(backend=backend).sync()
