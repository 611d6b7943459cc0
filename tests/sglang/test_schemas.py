"""Schemas as regular expressions, against what `jsonschema` and pydantic find valid."""

from __future__ import annotations

import json
import re
from enum import Enum
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

import branchline as bl
from branchline.sglang.schemas import build_regex_from_object

SCHEMAS: list[dict[str, Any]] = [
    {"type": "integer"},
    {"type": "number"},
    {"type": "boolean"},
    {"type": "null"},
    {"type": "string"},
    {"type": "string", "minLength": 2, "maxLength": 3},
    {"type": "string", "pattern": "^a+b$"},
    {"enum": ["a.b", 1, None, True]},
    {"const": "x"},
    {"type": ["integer", "null"]},
    {"anyOf": [{"type": "boolean"}, {"type": "string", "maxLength": 1}]},
    {"type": "array", "items": {"type": "integer"}},
    {"type": "array", "items": {"type": "integer"}, "minItems": 1},
    {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 3},
    {"type": "array", "items": {"type": "integer"}, "maxItems": 0},
    {"type": "array", "items": {"type": "array", "items": {"type": "boolean"}}, "maxItems": 2},
    {
        "type": "object",
        "properties": {"a b": {"type": "integer"}, "c": {"$ref": "#/$defs/d"}},
        "required": ["a b", "c"],
        "additionalProperties": False,
        "$defs": {"d": {"enum": ["x", "y"]}},
    },
]
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-20, 20)
    # Not 1.0: it is an integer to jsonschema, but nobody writes one like that.
    | st.floats(allow_nan=False, allow_infinity=False).filter(lambda x: not x.is_integer())
    | st.sampled_from(["a.b", "aab", "ab", "x", "", "axb", '"\\', "\n", "ü", "\U0001f600"])
)
VALUES = (
    SCALARS
    | st.lists(SCALARS, max_size=4)
    | st.lists(st.lists(st.booleans(), max_size=2), max_size=3)
    | st.fixed_dictionaries({"a b": SCALARS, "c": st.sampled_from(["x", "y", "z"])})
    | st.fixed_dictionaries({"a b": st.integers()})
)


@pytest.mark.parametrize("schema", SCHEMAS, ids=json.dumps)
@given(value=VALUES)
def test_matches_what_is_valid(schema: dict[str, Any], value: Any) -> None:
    text = json.dumps(value, ensure_ascii=False, sort_keys=True)  # in the order of the schema
    matches = re.fullmatch(build_regex_from_object(schema), text) is not None
    assert matches == jsonschema.Draft202012Validator(schema).is_valid(value)


class House(Enum):
    NORTH = "north"
    SOUTH = "south"


class Wand(BaseModel):
    wood: str
    length: float


class Wizard(BaseModel):
    name: str
    house: House
    age: int | None
    friends: list[str]
    wand: Wand


@given(
    st.builds(
        Wizard,
        age=st.none() | st.integers(),
        wand=st.builds(Wand, wood=st.text(), length=st.floats(-1e9, 1e9)),
    )
)
def test_matches_every_instance_of_a_model(wizard: Wizard) -> None:
    text = wizard.model_dump_json()
    assert re.fullmatch(build_regex_from_object(Wizard), text), text
    assert Wizard.model_validate_json(text) == wizard


def test_takes_text_and_white_space() -> None:
    regex = build_regex_from_object('{"type": "array", "items": {"type": "null"}}', r"\s*")
    assert re.fullmatch(regex, "[\n  null ,\n  null\n]")
    assert not re.fullmatch(build_regex_from_object({"type": "null"}), "null ")


class Tree(BaseModel):
    children: list[Tree]


@pytest.mark.parametrize(
    ("schema", "what"),
    [
        (Tree, "refers to itself"),
        ({"type": "integer", "minimum": 3}, "minimum"),
        ({"type": "object", "properties": {"a": {"$ref": "#/$defs/none"}}}, "nothing of that name"),
        ({"type": "array"}, "items"),
        ({"type": "date"}, "date"),
    ],
)
def test_what_it_cannot_say_is_refused(schema: Any, what: str) -> None:
    with pytest.raises(bl.InvalidRequest, match=what):
        build_regex_from_object(schema)
