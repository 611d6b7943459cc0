"""Tools: what is told of a function, how its calls are read and run."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

import branchline as bl
from branchline.docstring import described
from branchline.tools import Toolbox


class Unit(Enum):
    CELSIUS = "C"
    FAHRENHEIT = "F"


@dataclass
class Place:
    name: str
    country: str = "Norway"


def weather(place: Place, days: int = 1, unit: Unit = Unit.CELSIUS) -> str:
    """What the weather
    will be.

    As far as we know.

    Args:
        place: where; only
            cities: no seas
        days (int): how many
        nobody: no parameter

    Returns:
        a text
    """
    return f"{place.name}, {place.country}: rain, {days}, {unit.name}"


def add(a: int, b: int) -> int:
    return a + b


async def later(n: int) -> int:
    await asyncio.sleep(0.01)
    return n + 1


def fails(why: str) -> None:
    raise LookupError(why)


def written(name: str, **arguments: Any) -> str:
    call = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{call}\n</tool_call>"


def box(*functions: Any, choice: str = "auto", parallel: bool = True) -> Toolbox:
    return Toolbox.of(functions, choice, parallel=parallel)


# ---------------------------------------------------------------------------- a function


def test_what_a_docstring_says() -> None:
    text, parameters = described(weather)
    assert text == "What the weather will be.\nAs far as we know."
    assert parameters == {
        "place": "where; only cities: no seas",
        "days": "how many",
        "nobody": "no parameter",
    }
    assert described(add) == ("", {})


def test_the_schema_of_a_function() -> None:
    tool = bl.Tool.of(weather)
    assert (tool.name, tool.function) == ("weather", weather)
    members = tool.parameters["properties"]
    assert list(members) == ["place", "days", "unit"]
    assert members["place"]["description"] == "where; only cities: no seas"
    assert members["days"] == {"type": "integer", "default": 1, "description": "how many"}
    assert tool.parameters["required"] == ["place"]
    assert tool.parameters["additionalProperties"] is False
    assert "title" not in json.dumps(tool.parameters)
    assert tool.enforced["properties"]["days"] == {"type": "integer"}


def test_names_of_pydantics_own_are_fine() -> None:
    def schema(copy: int, model_config: str, _hidden: bool = False) -> None: ...

    (call,) = box(schema).parse(written("schema", copy=1, model_config="x"))
    assert call.arguments == {"copy": 1, "model_config": "x"}


class Shop:
    def price(self, item: str) -> int:
        return len(item)


def test_a_method_is_a_function_too() -> None:
    (call,) = box(Shop().price).parse(written("price", item="tent"))
    assert call.run() == 4


def no_hint(a: int, b) -> int: ...  # type: ignore[no-untyped-def,empty-body]
def opaque(a: object.__class__.__class__, f: Shop) -> int: ...  # type: ignore[empty-body,valid-type]
def many(*numbers: int) -> int: ...  # type: ignore[empty-body]
def nowhere(a: Nowhere) -> int: ...  # type: ignore[name-defined,empty-body]  # noqa: F821
def before(a: int, /) -> int: ...  # type: ignore[empty-body]


@pytest.mark.parametrize(
    ("tools", "says"),
    [
        ([no_hint], r"no_hint\(b\): needs a type hint"),
        ([opaque], r"opaque\(.*cannot be read from JSON"),
        ([many], r"many\(numbers\): a model calls by name"),
        ([before], r"before\(a\): a model calls by name"),
        ([nowhere], "nowhere: a type hint that has no meaning: .*Nowhere"),
        ([lambda: 1], "no function with a plain name"),
        ([5], "5 is no function"),
        ([add, add], "add, add: the names must differ"),
        ([], r"tools=\[\]: must be a list"),
        (add, "must be a list of at least one function"),
    ],
)
def test_what_cannot_be_a_tool_is_refused_by_name(tools: Any, says: str) -> None:
    with pytest.raises(bl.InvalidRequest, match=says):
        bl.gen("x", tools=tools)


def test_a_choice_of_none_of_them_is_refused() -> None:
    with pytest.raises(bl.InvalidRequest, match="must be auto, required or one of add, later"):
        bl.gen("x", tools=[add, later], tool_choice="sub")


def test_the_model_is_told_of_them() -> None:
    text = bl.describe_tools([weather, add])
    lines = [json.loads(line) for line in text.splitlines() if line.startswith('{"name": "')]
    assert [line["name"] for line in lines] == ["weather", "add"]
    assert lines[0]["parameters"] == bl.Tool.of(weather).parameters
    assert "<tool_call>" in text


def test_a_call_for_a_worked_example() -> None:
    tool = bl.Tool.of(weather)
    text = tool.written(place=Place("Ås"), unit=Unit.FAHRENHEIT)
    arguments = {"place": {"name": "Ås", "country": "Norway"}, "unit": "F"}
    call = json.dumps({"name": "weather", "arguments": arguments}, ensure_ascii=False)
    assert text == f"<tool_call>\n{call}\n</tool_call>"
    assert box(weather).parse(text)[0].arguments["unit"] is Unit.FAHRENHEIT
    with pytest.raises(bl.InvalidRequest, match="weather: place: Field required"):
        tool.written(days=2)


# ---------------------------------------------------------------------------- calls


def test_calls_are_values_of_the_hints() -> None:
    text = (
        "Let me look.\n"
        + written("weather", place={"name": "Oslo"}, unit="F")
        + "\n"
        + written("add", a=1, b=2)
    )
    first, second = box(weather, add).parse(text)
    assert first.arguments == {"place": Place("Oslo"), "unit": Unit.FAHRENHEIT}
    assert first.run() == "Oslo, Norway: rain, 1, FAHRENHEIT"
    assert (second.name, second.run()) == ("add", 3)
    assert box(add).parse("No need.") == []


@given(st.text())
def test_a_mark_inside_an_argument_is_text(text: str) -> None:
    text = f"</tool_call>{text}<tool_call>"
    (call,) = box(fails).parse(written("fails", why=text))
    assert call.arguments == {"why": text}


@pytest.mark.parametrize(
    ("choice", "text", "says"),
    [
        ("auto", written("sub", a=1), "a call of 'sub'; known are add"),
        ("auto", written("add", a=1), "add: b: Field required"),
        ("auto", written("add", a=1, b="x"), "add: b: .*valid integer"),
        ("auto", written("add", a=1, b=2, c=3), "add: c: Extra inputs"),
        ("auto", written("add", a=1, b=2)[:-25], "a call that is no JSON"),
        ("auto", "<tool_call>[]</tool_call>", "a call of None"),
        ("required", "No need.", "no call of a tool, and one is required"),
    ],
)
def test_what_is_no_call_is_said(choice: str, text: str, says: str) -> None:
    with pytest.raises(bl.InvalidValue, match=says) as caught:
        box(add, choice=choice).parse(text)
    assert caught.value.text == text


def test_the_variable_is_the_calls() -> None:
    backend = bl.Mock([written("add", a=2, b=2), "Hm", "Four."])

    def body(s: Any) -> None:
        s += bl.system(bl.describe_tools([add])) + bl.user("2 + 2?")
        s += bl.assistant(bl.gen("calls", tools=[add], temperature=0))
        assert bl.call_tools(s, s["calls"]) == [4]
        s += bl.assistant(bl.gen("none", tools=[add]))
        assert bl.call_tools(s, s["none"]) == []
        s += bl.assistant(bl.gen("answer"))

    state = bl.function(body).run(backend=backend)
    assert state["answer"] == "Four."
    assert state["calls"] == [bl.ToolCall("add", {"a": 2, "b": 2}, bl.Tool.of(add))]
    assert state.text_of("calls") == written("add", a=2, b=2)
    assert state.messages()[3] == {
        "role": "user",
        "content": "<tool_response>\n4\n</tool_response>",
    }
    (step, *_) = [step for step in state.trace()["state"]["steps"] if step["kind"] == "gen"]
    assert step["settings"]["tools"] == ["add"]
    assert "grammar" not in step["settings"]


def test_of_several_texts_each_has_its_calls() -> None:
    node = bl.gen("x", tools=[add], n=2)
    state = bl.function(lambda s: s.__iadd__("a" + node)).run(
        backend=bl.Mock([written("add", a=1, b=1), "no"])
    )
    first, second = state["x"]
    assert [call.run() for call in first] == [2]
    assert second == []


def test_results_of_all_kinds_are_told() -> None:
    def body(s: Any) -> None:
        s += "a" + bl.gen("calls", tools=[weather, fails, points])
        results = bl.call_tools(s, s["calls"], role=None)
        assert results[0].startswith("Oslo")
        assert isinstance(results[1], LookupError)
        assert results[2] == [Place("Ålesund")]

    def points(near: Literal["sea"]) -> list[Place]:
        return [Place("Ålesund")]

    calls = [written("weather", place={"name": "Oslo"}), written("fails", why="lost")]
    text = "\n".join([*calls, written("points", near="sea")])
    state = bl.function(body).run(backend=bl.Mock(text))
    told = re.findall(r"<tool_response>\n(.*)\n</tool_response>", state.text())
    assert told == [
        "Oslo, Norway: rain, 1, CELSIUS",
        "error: LookupError: lost",
        '[{"name":"Ålesund","country":"Norway"}]',
    ]


def test_async_functions() -> None:
    text = written("later", n=1) + "\n" + written("add", a=1, b=1) + "\n" + written("later", n=5)

    @bl.function
    async def program(s: Any) -> Any:
        s += "a" + bl.gen("calls", tools=[later, add])
        return await bl.call_tools_async(s, await s["calls"], role=None)

    async def main() -> Any:
        state = await program(backend=bl.Mock(text))
        return state.ret_value, state.text()

    results, told = asyncio.run(main())
    assert results == [2, 2, 6]
    assert told.endswith("<tool_response>\n6\n</tool_response>")

    def body(s: Any) -> None:
        s += "a" + bl.gen("calls", tools=[later])
        bl.call_tools(s, s["calls"])

    with pytest.raises(bl.InvalidRequest, match=r"later is async: await call_tools_async"):
        bl.function(body).run(backend=bl.Mock(written("later", n=1)))
