from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Literal, Optional, Union

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

import branchline as bl
from branchline.errors import InvalidRequest
from branchline.typed import parse


class Color(Enum):
    RED = "red"
    BLUE = 2


class City(BaseModel):
    name: str
    people: int


@dataclass
class Point:
    x: float
    tags: list[str]


CITY = '{"name": "Oslo", "people": 709000}'


@pytest.mark.parametrize(
    ("wanted", "text", "value"),
    [
        (str, " as it is ", " as it is "),
        (int, " 42\n", 42),
        (int, "-7", -7),
        (float, "2.5", 2.5),
        (float, "3", 3.0),
        (bool, " True", True),
        (bool, "no", False),
        (None | int, "None", None),
        (Optional[int], "12", 12),  # noqa: UP045
        (Union[int, str], "x", "x"),  # noqa: UP007
        (int | float, "2.5", 2.5),
        (Literal["yes", "no"], " yes", "yes"),
        (Literal[1, 2, True], "2", 2),
        (Literal[1, 2, True], "True", True),
        (Color, "red", Color.RED),
        (Color, "2", Color.BLUE),
        (Color, " BLUE ", Color.BLUE),
        (Annotated[int, Field(ge=0)], "5", 5),
        (list[int], "[1, 2]", [1, 2]),
        (dict[str, float], '{"a": 1}', {"a": 1.0}),
        (tuple[int, str], '[1, "b"]', (1, "b")),
        (City, CITY, City(name="Oslo", people=709000)),
        (City, f"```json\n{CITY}\n```", City(name="Oslo", people=709000)),
        (City, f"Here [it] is: {CITY} Done.", City(name="Oslo", people=709000)),
        (Point, '{"x": 1, "tags": []}', Point(1.0, [])),
        (list[City], f"Sure:\n```\n[{CITY}]\n```\n", [City(name="Oslo", people=709000)]),
        (City | None, CITY, City(name="Oslo", people=709000)),
    ],
)
def test_texts_and_what_they_are(wanted: Any, text: str, value: Any) -> None:
    parsed = parse(text, wanted)
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("wanted", "text", "says"),
    [
        (int, "four", "which is not int: .*valid integer"),
        (int, "4.5", "which is not int"),
        (bool, "perhaps", "which is not bool"),
        (Literal["yes", "no"], "maybe", r"Literal\['yes', 'no'\]: it can be 'yes', 'no'"),
        (Color, "green", "which is not Color: it can be 'RED', 'BLUE', 'red', '2'"),
        (Annotated[int, Field(ge=0)], "-5", "greater than or equal to 0"),
        (list[int], '[1, "x"]', r"which is not list\[int\]: 1: .*valid integer"),
        (City, '{"name": "Oslo"}', "which is not City: people: Field required"),
        (City, "no JSON", "Invalid JSON"),
        (int | None, "x", "int: .*; NoneType: it can be None or null"),
        (list[int], "x" * 200, "x{80}…"),
    ],
)
def test_what_a_text_is_not_is_said(wanted: Any, text: str, says: str) -> None:
    with pytest.raises(bl.InvalidValue, match=says) as caught:
        parse(text, wanted)
    assert (caught.value.text, caught.value.type) == (text, wanted)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=8))
def test_json_is_found_in_any_prose(value: Any) -> None:
    prose = f"The answer is\n{json.dumps([value])}\nas you asked."
    assert parse(prose, list[Any]) == [value]


class Opaque:
    pass


@pytest.mark.parametrize("wrong", [Opaque, 5, list[Opaque]])
def test_a_type_no_text_can_be_is_refused_where_it_stands(wrong: Any) -> None:
    with pytest.raises(InvalidRequest, match="not a type that text can be parsed to"):
        bl.gen("x", type=wrong)


def test_a_variable_is_the_value_and_the_text_stays() -> None:
    def body(s):
        s += "How many? " + bl.gen("count", type=int) + "."
        s["mine"] = 3
        assert s["count"] + s["mine"] == 8

    state = bl.function(body).run(backend=bl.Mock(" 5"))
    assert (state["count"], state.text_of("count")) == (5, " 5")
    assert state.text() == "How many?  5."
    assert state.text_of("mine") is None


def test_only_who_wants_the_value_hears_that_it_is_none() -> None:
    def body(s):
        s += "n=" + bl.gen("n", type=int)  # the line
        s += "." + bl.gen("after")

    state = bl.function(body).run(backend=bl.Mock(["many", "fine"]))
    assert state["after"] == "fine"
    assert state.text() == "n=many.fine"
    assert state.error() is None
    assert state.text_of("n") == "many"
    assert state.get_meta_info("n")["completion_tokens"] == 2  # with the end
    assert "n" not in state
    with pytest.raises(bl.ProgramError, match="the model wrote 'many', which is not int") as caught:
        state["n"]
    assert isinstance(caught.value.__cause__, bl.InvalidValue)
    assert (caught.value.variable, caught.value.site.file) == ("n", __file__)


def test_several_choices_are_several_values() -> None:
    state = bl.function(lambda s: s.__iadd__("a" + bl.gen("x", n=2, type=int))).run(
        backend=bl.Mock(["1", "2"])
    )
    assert (state["x"], state.text_of("x")) == ([1, 2], ["1", "2"])


def test_a_stream_shows_the_text_and_a_join_the_values() -> None:
    def body(s):
        s += "a"
        forks = s.fork(2)
        forks += lambda i: f"{i}" + bl.gen("x", type=int)
        forks.join()

    state = bl.function(body).run(backend=bl.Mock({"0": "10", "1": "11"}), stream=True)
    assert (state["x"], state.text_of("x")) == ([10, 11], ["10", "11"])
    state = bl.function(lambda s: s.__iadd__("a" + bl.gen("x", type=int))).run(
        backend=bl.Mock("7"), stream=True
    )
    assert [*state.text_iter("x")] == ["7"]


def test_a_select_has_a_text_too() -> None:
    state = bl.function(lambda s: s.__iadd__("a" + bl.select("x", ["b", "c"]))).run(
        backend=bl.Mock(select="c")
    )
    assert state.text_of("x") == "c"


def test_without_a_stream_the_text_comes_in_one_piece() -> None:
    def body(s):
        s += "a" + bl.gen("x", type=int) + bl.gen("bad", type=int)
        s["mine"] = 3

    state = bl.function(body).run(backend=bl.Mock(["7", "many"]))
    assert [*state.text_iter("x")] == ["7"]
    assert [*state.text_iter("mine")] == [3]
    pieces = state.text_iter("bad")
    assert next(pieces) == "many"
    with pytest.raises(bl.ProgramError, match="not int"):
        next(pieces)
