"""What a gen's text must match: how it is said, sent and checked."""

from __future__ import annotations

import datetime as dt
import json
import random
import re
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Literal, Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

import branchline as bl
from branchline.constraint import one_of
from branchline.protocol import Finish, Update, Usage
from branchline.schema_of import schema_of
from branchline.type_grammar import form_of
from branchline.typed import adapter, parse

from .fake_backend import FakeBackend
from .fake_openai import serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from branchline.protocol import Generate


class Color(Enum):
    RED = "red"
    BLUE = 2


class City(BaseModel):
    title: str  # a member may have the name of a keyword
    people: int = Field(default=0, description="how many live there")
    mayors: set[str] = set()


@dataclass
class Point:
    x: float


def sorted_words(text: str) -> str:
    return " ".join(sorted(text.split()))


CITY = {
    "type": "object",
    "properties": {
        "title": {"type": "string"},
        "people": {"type": "integer"},
        "mayors": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["title"],
    "additionalProperties": False,
}
"""A schema without what only describes, and without uniqueItems, which is checked afterwards."""


def sent(node: bl.nodes.Node, **settings: Any) -> Any:
    """The parameters that a gen is sent with."""
    backend = FakeBackend("")
    bl.function(lambda s: s.__iadd__("a" + node)).run(backend=backend, **settings).error()
    return backend.requests[0].params


def said(node: bl.nodes.Node, answers: Any) -> bl.ProgramState:
    return bl.function(lambda s: s.__iadd__("a" + node)).run(backend=bl.Mock(answers))


# ---------------------------------------------------------------------------- how it is said


@pytest.mark.parametrize(
    ("given", "kind", "source"),
    [
        ({"regex": r"\d+"}, "regex", r"\d+"),
        ({"json_schema": {"type": "null"}}, "json_schema", '{"type": "null"}'),
        ({"json_schema": '{"type":"null"}'}, "json_schema", '{"type": "null"}'),
        ({"json_schema": City}, "json_schema", None),
        ({"grammar": 'start: "a"'}, "lark", 'start: "a"'),
        ({"grammar": bl.Grammar("ebnf", 'root ::= "a"')}, "ebnf", 'root ::= "a"'),
    ],
)
def test_a_grammar_is_sent_as_it_was_given(
    given: dict[str, Any], kind: str, source: str | None
) -> None:
    grammar = sent(bl.gen("x", **given)).grammar
    assert grammar.kind == kind
    if source is None:
        assert json.loads(grammar.source) == CITY
    else:
        assert grammar.source == source


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"regex": "a("}, r"regex='a\(': not a regular expression"),
        ({"regex": 5}, "regex=5"),
        ({"json_schema": "{"}, "json_schema='{': not JSON"),
        ({"json_schema": 5}, "json_schema=5: must be a schema"),
        ({"json_schema": int}, "must be a schema"),
        ({"json_schema": {"a": object()}}, "cannot be JSON"),
        ({"grammar": 5}, "grammar=5: must be a Grammar"),
        ({"grammar": "a" * (1 << 20) + "a"}, "1048577 characters: at most 1048576"),
        ({"regex": "a", "type": int}, "type and regex: .* one of them"),
        ({"regex": "a", "json_schema": {}, "grammar": "x"}, "regex and json_schema and grammar"),
        ({"regex": "a", "choices": ["a"]}, "choices and regex"),
        ({"tools": [print], "regex": "a"}, "regex and tools"),
    ],
)
def test_a_mistake_is_refused_where_it_stands(given: dict[str, Any], says: str) -> None:
    with pytest.raises(bl.InvalidRequest, match=says):
        bl.gen("x", **given)


# ---------------------------------------------------------------------------- types


@pytest.mark.parametrize(
    ("wanted", "right", "wrong"),
    [
        (int, ["5", "-12", "+3"], ["five", "", " 5"]),
        (float, ["5", "0.5", "-1e9", "2.5E-3"], ["5.", ".5", "inf", "1e"]),
        (Annotated[int, Field(ge=-1, lt=3)], ["-1", "0", "2"], ["3", "-2", "+1"]),
        (Annotated[int, Field(gt=0)], ["1", "99999"], ["-1", "+1"]),
        (Annotated[float, Field(ge=0, le=1)], ["1", "0.5"], ["-0.5"]),
        (bool, ["true", " False", "Yes", "no"], ["maybe", "1", "tru"]),
        (type(None), ["None", "null"], ["nil"]),
        (Literal["a.b", "c|d", 7], ["a.b", "c|d", " 7"], ["aXb", "c", "d"]),
        (Color, ["red", "2", "BLUE"], ["blue", "green"]),
        (Optional[int], ["5", "None"], ["x"]),  # noqa: UP045
        (int | Literal["many"], ["5", "many"], ["few"]),
        (Annotated[str, Field(pattern=r"^\d{2}(a|b)$")], ["12a"], ["12", "x12a", "12ab", " 12a"]),
        (Annotated[str, Field(pattern=r"[0-9]")], ["5", "a5\nb"], ["a"]),
        (Annotated[str, Field(min_length=2, max_length=3)], ["ab", "a\nb"], ["a", "abcd", " abc"]),
    ],
)
def test_the_texts_of_scalars(wanted: Any, right: list[str], wrong: list[str]) -> None:
    """A text that may be written is one that is read, and the grammar leaves out the others."""
    params = sent(bl.gen("x", type=wanted))
    assert params.grammar.kind == "regex"
    for text in right:
        assert re.fullmatch(params.grammar.source, text), text
        parse(text, wanted)
    for text in wrong:
        assert not re.fullmatch(params.grammar.source, cut(text, params.stop)), text


def cut(text: str, stops: Any) -> str:
    """A text as far as the first of the stop strings."""
    return min([text, *(text.partition(stop)[0] for stop in stops)], key=len)


@pytest.mark.parametrize(
    ("wanted", "schema"),
    [
        (City, CITY),
        (list[int], {"type": "array", "items": {"type": "integer"}}),
        (dict[str, bool], {"type": "object", "additionalProperties": {"type": "boolean"}}),
        (dt.date, {"type": "string", "format": "date"}),
        (
            list[Annotated[int, Field(ge=1, le=6)]],
            {"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 6}},
        ),
        (int | list[None], {"anyOf": [{"type": "integer"},
                                      {"type": "array", "items": {"type": "null"}}]}),
        (
            Point,
            {
                "type": "object",
                "properties": {"x": {"type": "number"}},
                "required": ["x"],
                "additionalProperties": False,
            },
        ),
    ],
)  # fmt: skip
def test_the_schemas_of_what_has_parts(wanted: Any, schema: dict[str, Any]) -> None:
    form = form_of(wanted)
    assert form is not None
    assert form.schema is not None
    assert json.loads(form.schema) == schema


class Opaque:
    @classmethod
    def __get_pydantic_core_schema__(cls, *_: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_plain_validator_function(lambda value: value)


@pytest.mark.parametrize(
    "free",
    [
        str,
        int | str,
        City | Color,  # JSON and bare text
        Annotated[str, Field(pattern="^a|b$")],
        Annotated[str, Field(pattern=r"\bword\b")],
        Opaque,
    ],
)
def test_where_nothing_can_be_said_the_text_is_only_parsed(free: Any) -> None:
    assert sent(bl.gen("x", type=free)).grammar is None


def test_descriptions_go_and_unions_stay() -> None:
    class Cat(BaseModel):
        kind: Literal["cat"]

    class Dog(BaseModel):
        kind: Literal["dog"] = Field(examples=["dog"])

    class Pet(BaseModel):
        pet: Cat | Dog = Field(discriminator="kind")
        names: Annotated[str, Field(json_schema_extra={"pattern": "(?=a)b"})] = "x"
        path: Annotated[str, Field(json_schema_extra={"format": "path"})] = "x"

    schema = schema_of(adapter(Pet))
    assert schema["properties"]["pet"] == {
        "anyOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}]
    }
    assert schema["properties"]["names"] == schema["properties"]["path"] == {"type": "string"}
    assert schema["$defs"]["Dog"]["properties"] == {"kind": {"type": "string", "const": "dog"}}


def test_a_number_ends_where_something_else_begins() -> None:
    """What comes after it may be any token that begins with a stop, and is cut off there."""
    params = sent(bl.gen("x", type=int, stop=["kg", "\n"]))
    assert params.stop[:2] == ("kg", "\n")
    for text in ("24", "24kg", "24 hours", "24\n", "24.5", "24, or"):
        assert re.fullmatch(params.grammar.source, text), text
        assert cut(text, params.stop) == "24"
    for text in ("24h", "x", " 24", "\n"):
        assert not re.fullmatch(params.grammar.source, text), text
    params = sent(bl.gen("x", type=float))
    assert re.fullmatch(params.grammar.source, "24.5 hours")
    assert "." not in params.stop
    assert sent(bl.gen("x", type=bool, stop="end")).stop == ("end",)
    assert sent(bl.gen("x", type=list[int])).stop == ()
    many = [f"stop {i}" for i in range(60)]
    assert sent(bl.gen("x", type=int, stop=many)).stop == (*many, " ", "\n", "\t", ",")


def test_reasoning_is_of_no_type() -> None:
    thinking = bl.separate_reasoning(bl.gen("x", type=int), "qwen3")
    assert sent(thinking).grammar is None


def test_whole_numbers_and_quoted_texts() -> None:
    assert said(bl.gen_int("x", 4, temperature=0), "12")["x"] == 12
    assert sent(bl.gen_int("x", 4)).max_tokens == 4
    state = said(bl.gen_string("x"), '"It\\"s"')
    assert (state["x"], state.text_of("x")) == ('It"s', '"It\\"s"')
    assert json.loads(sent(bl.gen_string("x")).grammar.source) == {"type": "string"}


# ---------------------------------------------------------------------------- choices


@given(st.lists(st.text(max_size=5), min_size=1, max_size=8), st.text(max_size=5))
def test_the_expression_of_choices(choices: list[str], other: str) -> None:
    pattern = one_of(choices)
    assert all(re.fullmatch(pattern, choice) for choice in choices)
    assert bool(re.fullmatch(pattern, other)) == (other in choices)


def test_a_choice_that_the_model_writes() -> None:
    backend = bl.Mock("north east")
    node = bl.select("x", ["north", "north east", "süd"], 0.5, method="decode", seed=3)
    state = bl.function(lambda s: s.__iadd__("a" + node + ".")).run(
        backend=backend, stop="east", temperature=2.0, n=2, max_new_tokens=1
    )
    assert (state["x"], state.text()) == ("north east", "anorth east.")
    params = backend.requests[0].params
    assert (params.temperature, params.seed, params.n, params.stop) == (0.5, 3, 1, ())
    assert params.max_tokens == len(b"north east") + 1
    assert state.get_meta_info("x")["completion_tokens"] == 3
    (step,) = [step for step in state.trace()["state"]["steps"] if step["kind"] == "select"]
    assert step["settings"]["choices"] == ["north", "north east", "süd"]
    assert step["settings"]["method"] == "decode"
    assert "grammar" not in step["settings"]


def test_a_choice_that_is_none_is_refused() -> None:
    state = said(bl.select("x", ["a", "b"], method="decode"), "c")
    with pytest.raises(bl.ProgramError, match=r"answer 'c' does not match the gen's regex 'a\|b'"):
        state["x"]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"method": "guess"}, "method='guess': must be score or decode"),
        ({"method": "decode", "choices_method": "sum"}, "leave out choices_method"),
        ({"method": "decode", "calibration": "A:"}, "leave out choices_method and calibration"),
    ],
)
def test_what_decoding_does_not_take(given: dict[str, Any], says: str) -> None:
    with pytest.raises(bl.InvalidRequest, match=says):
        bl.select("x", ["a"], **given)


def test_choices_by_a_seed_of_the_run() -> None:
    def body(s: Any) -> None:
        s += "a" + bl.select("x", ["a", "b"], method="decode") + bl.gen("y")

    backend = bl.Mock(["a", "c", "a", "c"])
    for _ in range(2):
        bl.function(body).run(backend=backend, seed=random.Random(0).randrange(9)).sync()
    seeds = [request.params.seed for request in backend.requests]
    assert seeds[:2] == seeds[2:]
    assert seeds[0] != seeds[1]


# ---------------------------------------------------------------------------- a mock's answers


@pytest.mark.parametrize(
    ("given", "right", "wrong"),
    [
        ({"regex": "[a-c]+"}, "abc", "abcd"),
        ({"json_schema": {"type": "object"}}, '{"a": 1}', "{'a': 1}"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_script_that_breaks_the_rule(
    given: dict[str, Any], right: str, wrong: str, stream: bool
) -> None:
    def body(s: Any) -> None:
        s += "a" + bl.gen("good", **given) + bl.gen("bad", **given)

    state = bl.function(body).run(backend=bl.Mock([right, wrong]), stream=stream)
    assert state["good"] == right
    with pytest.raises(bl.ProgramError, match=re.escape(wrong[:3])) as caught:
        state["bad"]
    assert isinstance(caught.value.__cause__, bl.InvalidRequest)


def test_what_was_cut_may_be_the_beginning_of_a_match() -> None:
    assert said(bl.gen("x", 2, regex="a b c"), "a b c")["x"] == "a b"
    assert said(bl.gen("x", regex="a b c", stop=" b"), "a b c")["x"] == "a"
    assert said(bl.gen("x", regex="a b c"), bl.Reply("a b c"))["x"] == "a b c"


# ---------------------------------------------------------------------------- an endpoint


def asked_of(node: bl.nodes.Node, **settings: Any) -> dict[str, Any]:
    """What an endpoint of OpenAI's API is sent."""
    with serving("5") as fake:
        backend = bl.OpenAI("m", base_url=fake.url, **settings)
        chat = settings.get("chat", True)
        program = bl.user("a") + bl.assistant(node) if chat else "a" + node
        bl.function(lambda s: s.__iadd__(program)).run(backend=backend).sync()
        (body,) = fake.bodies
    return dict(body)


def test_a_chat_has_schemas() -> None:
    body = asked_of(bl.gen("x", json_schema=City))
    asked = body["response_format"]
    assert asked["type"] == "json_schema"
    assert (asked["json_schema"]["schema"], asked["json_schema"]["strict"]) == (CITY, True)
    body = asked_of(bl.gen("x", json_schema={}), chat=False, extensions=["response_format"])
    assert body["response_format"]["json_schema"]["schema"] == {}


def test_what_an_endpoint_has_beyond_the_api() -> None:
    body = asked_of(bl.gen("x", regex="[0-9]"), extensions=["regex"])
    assert body["regex"] == "[0-9]"


def test_a_type_is_only_parsed_by_an_endpoint() -> None:
    body = asked_of(bl.gen("x", type=int))
    assert body.keys().isdisjoint({"regex", "response_format", "stop"})


@pytest.mark.parametrize(
    ("node", "settings", "says"),
    [
        (bl.gen("x", regex="5"), {}, r"regex: .*say so with extensions=\["),
        (bl.gen("x", json_schema={}), {"chat": False}, "json_schema: .*for completions"),
        (bl.gen("x", grammar='start: "5"'), {}, "grammar, or tools: "),
        (bl.gen("x", tools=[sorted_words]), {}, "grammar, or tools: "),
        (bl.select("x", ["5"], method="decode"), {}, "regex: "),
    ],
)
def test_what_an_endpoint_lacks_is_refused_by_name(
    node: bl.nodes.Node, settings: dict[str, Any], says: str
) -> None:
    with pytest.raises(bl.ProgramError, match=says):
        asked_of(node, **settings)


# ---------------------------------------------------------------------------- what is told of it


class Forcing(FakeBackend):
    """Says that two of its tokens were forced, and why it ended."""

    async def generate(self, request: Generate) -> AsyncIterator[Update]:
        self.requests.append(request)
        finish = Finish("stop", 0, 3, note="min_tokens=5: the grammar ends before")
        ids = tuple(map(ord, "abc"))
        yield Update(request.rid, 0, "abc", ids, finish=finish, usage=Usage(1, 0, 3, 2))


def test_forced_tokens_and_notes_are_told() -> None:
    state = bl.function(lambda s: s.__iadd__("a" + bl.gen("x", regex="abc") + bl.gen("y"))).run(
        backend=Forcing()
    )
    meta = state.get_meta_info("x")
    assert (meta["completion_tokens"], meta["forced_tokens"]) == (3, 2)
    assert meta["note"] == "min_tokens=5: the grammar ends before"
    assert (state.usage.forced_tokens, state.usage["x"].forced_tokens) == (4, 2)
    assert re.search(r"^x +1 +1 +0 +3 +2 ", str(state.usage), re.MULTILINE), state.usage
    trace = state.trace()["state"]
    assert trace["usage"]["forced_tokens"] == 4
    hole = trace["steps"][1]
    assert hole["requests"][0]["forced_tokens"] == 2
    assert hole["meta"]["note"] == meta["note"]
    assert said(bl.gen("x"), "abc").get_meta_info("x").keys().isdisjoint({"note", "forced_tokens"})
