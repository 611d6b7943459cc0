"""Constrained gens on the real model: a promise holds, whatever the model would write."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal

import pytest

import branchline as bl

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def runtime(smollm2_path: Path) -> Iterator[bl.Runtime]:
    with bl.Runtime(str(smollm2_path), kv_memory="512MiB") as runtime:
        yield runtime


class Size(Enum):
    SMALL = "S"
    LARGE = "L"


@dataclass
class Item:
    name: str
    sizes: list[Size]
    price: float | None = None


def one(runtime: bl.Runtime, prompt: str, node: bl.nodes.Node, **settings: Any) -> bl.ProgramState:
    return bl.function(lambda s: s.__iadd__(prompt + node)).run(backend=runtime, **settings)


@pytest.mark.parametrize(
    ("prompt", "wanted"),
    [
        ("A day has ", int),
        ("The number pi is ", float),
        ("Is water wet? Answer yes or no:", bool),
        ("The sky is", Literal["blue", "bluish", "green"]),
        ("Size, S or L:", Size),
        ("How many, a number or none:", int | None),
        ("JSON of an item: ", Item),
        ("JSON of three numbers: ", tuple[int, int, int]),
    ],
)
def test_a_typed_gen_always_has_a_value(runtime: bl.Runtime, prompt: str, wanted: Any) -> None:
    """At a temperature that makes nonsense of anything that is left free."""
    node = bl.gen("x", 60, type=wanted, stop="JSON")
    states = [one(runtime, prompt, node, temperature=3.0, seed=seed) for seed in range(3)]
    for state in states:
        if state.get_meta_info("x")["finish_reason"]["type"] == "stop":
            assert state["x"] is None or state["x"] == state["x"]  # reading it does not raise


def test_numbers_end_where_the_model_would_go_on(runtime: bl.Runtime) -> None:
    state = one(runtime, "A day has ", bl.gen("x", type=int), temperature=0)
    assert state["x"] == 24
    assert state.text() == "A day has 24"


def test_a_regex_a_schema_and_a_grammar(runtime: bl.Runtime) -> None:
    def body(s: Any) -> None:
        s += "A date: " + bl.gen("date", regex=r"\d{4}-(0[1-9]|1[0-2])-\d\d")
        s += "\nA person: " + bl.gen("person", json_schema={
            "type": "object", "properties": {"name": {"enum": ["Ann", "Bob"]}},
            "required": ["name"], "additionalProperties": False,
        })  # fmt: skip
        s += "\nA sum: " + bl.gen("sum", 24, grammar='start: N ("+" N)+\nN: /[0-9]{1,2}/')
        s += "\nA name: " + bl.gen_string("name", 16)

    state = bl.function(body).run(backend=runtime, temperature=1.0, seed=5)
    assert re.fullmatch(r"\d{4}-(0[1-9]|1[0-2])-\d\d", state["date"])
    assert json.loads(state["person"]) in ({"name": "Ann"}, {"name": "Bob"})
    reason = state.get_meta_info("sum")["finish_reason"]["type"]
    assert reason == "length" or re.fullmatch(r"\d{1,2}(\+\d{1,2})+", state["sum"])
    usage = state.usage
    assert usage["person"].forced_tokens >= usage["person"].generated_tokens / 2
    assert usage["date"].forced_tokens >= 1


def test_a_decoded_choice_is_one_of_them(runtime: bl.Runtime) -> None:
    cities = ["Paris", "Parma", "Paris, Texas", "Brüssel"]
    prompt = "The capital of France is "
    node = bl.select("x", cities, method="decode")
    assert one(runtime, prompt, node)["x"] in ("Paris", "Paris, Texas")
    drawn = bl.select("x", cities, 5.0, method="decode")
    found = {one(runtime, prompt, drawn, seed=seed)["x"] for seed in range(12)}
    assert found <= set(cities)
    assert len(found) > 1
    shared = [f"The word is number {number}" for number in ("one", "two")]
    state = one(runtime, "Say it: ", bl.select("x", shared, method="decode"))
    assert state["x"] in shared
    assert state.usage["x"].forced_tokens >= 3


def test_a_pattern_that_cannot_be_is_an_error_of_that_gen_only(runtime: bl.Runtime) -> None:
    def body(s: Any) -> None:
        forks = s.fork(2)
        forks[0] += "a" + bl.gen("x", regex=r"(?=a)b")
        forks[1] += "a" + bl.gen("y", 4)
        assert isinstance(forks[1]["y"], str)
        forks[0]["x"]

    with pytest.raises(bl.ProgramError, match=r"look-?ahead|look-?around"):
        bl.function(body).run(backend=runtime).sync()


def weather(city: str, days: int = 1) -> str:
    """The weather in a city."""
    return f"{city}: sun for {days} days"


def test_calls_are_always_calls(runtime: bl.Runtime) -> None:
    def body(s: Any, choice: str) -> None:
        s += bl.system(bl.describe_tools([weather])) + bl.user("Weather in Rome for 2 days?")
        gen = bl.gen("calls", 120, tools=[weather], tool_choice=choice, parallel_tool_calls=False)
        s += bl.assistant(gen)
        bl.call_tools(s, s["calls"])

    for choice in ("required", "weather"):
        state = bl.function(body).run(choice, backend=runtime, temperature=0)
        (call,) = state["calls"]
        assert (call.name, call.arguments) == ("weather", {"city": "Rome", "days": 2})
        assert state.messages()[-1]["content"].splitlines()[1] == "Rome: sun for 2 days"
