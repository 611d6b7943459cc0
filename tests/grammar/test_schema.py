"""What of JSON Schema is refused, how the output is written, and nothing in disguise."""

from __future__ import annotations

import json
import random

import pytest

from branchline.errors import InvalidRequest
from branchline.grammar import Grammar
from branchline.runtime.grammar.guidance import Guidance, GuidanceGrammar

from .vocabularies import byte_vocabulary
from .walks import accepts, sample

VOCABULARY = byte_vocabulary()
GUIDANCE = Guidance(VOCABULARY)
INTEGER = {"type": "integer"}


def _compile(schema: object) -> GuidanceGrammar:
    source = schema if isinstance(schema, str) else json.dumps(schema)
    return GUIDANCE.compile(Grammar("json_schema", source))


def _accepts(schema: object, text: str) -> bool:
    return accepts(_compile(schema), VOCABULARY, VOCABULARY.encode(text))


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[]", "a schema is an object"),
        ("false", "nothing else can be satisfied"),
        ('{"minimum": NaN}', "NaN is not JSON"),
        ('{"items":' * 100_000, "nested too deeply"),
        ('"\ud800"', "surrogate"),
        ({"type": "strng"}, '#/type is "strng"'),
        ({"properties": {"a": {"type": []}}}, "#/properties/a/type is []"),
        ({"properties": []}, "#/properties is not an object of schemas"),
        ({"properties": {"a/b": 5}}, "#/properties/a~1b is not a schema"),
        ({"items": [INTEGER]}, "#/items is not a schema"),
        ({"anyOf": []}, "#/anyOf is not a list of schemas"),
        ({"enum": []}, "#/enum is []"),
        ({"required": "a"}, '#/required is "a"'),
        ({"minLength": -1}, "#/minLength is -1"),
        ({"maximum": True}, "#/maximum is true"),
        ({"multipleOf": 0}, "#/multipleOf is 0"),
        ({"$defs": {"x": {"pattern": 5}}}, "#/$defs/x/pattern is 5"),
        ({"maxLenght": 3}, 'keyword "maxLenght" at #'),
        ({"type": "integer", "format": "int64"}, '#/format is "int64"'),
        ({"pattern": "(?=a)b"}, "look-around, including look-ahead and look-behind, is not"),
        ({"properties": {"a": {"pattern": "(a)\\1"}}}, "at #/properties/a/pattern"),
        ({"pattern": "[a-z&&[^b]]"}, "without brackets"),
        ({"patternProperties": {"[[a]]": {}}}, "without brackets"),
        ({"oneOf": [INTEGER, {"type": "number"}]}, "may overlap"),
        ({"items": {"oneOf": [INTEGER, {"type": "number"}]}}, "at #/items/oneOf"),
        ({"$ref": "#/$defs/a"}, "does not exist at #/$ref"),
        ({"$ref": "#/title", "title": "x"}, "must be a reference to a schema"),
        ({"items": {"$ref": "https://example.com/a.json"}}, "nothing is fetched at #/items/$ref"),
        ({"$ref": "#"}, "no text matches"),
        ({"allOf": [{"$ref": "#"}, INTEGER]}, "circular references"),
        ({"minimum": 3, "maximum": 2, **INTEGER}, "Unsatisfiable"),
        ({"const": "a\u0001"}, "control character"),
        ({"items": {"enum": [1, "a" * 8191]}}, '"enum" at #/items cannot'),
        ({"minProperties": 2}, "cannot be counted"),
        ({"$schema": "http://json-schema.org/draft-03/schema#"}, "drafts 4 to 2020-12"),
        ({"$schema": "http://json-schema.org/draft-07/schema#", "prefixItems": []}, "this draft"),
        ({"items": {"$schema": "http://json-schema.org/draft-07/schema#"}}, "to the root"),
        ({"x-guidance": {"lenient": True}}, "x-guidance takes only"),
        ({"items": {"x-guidance": {}}}, "to the root"),
        ({"properties": {str(i): {} for i in range(501)}}, "501 optional properties"),
        ({"anyOf": [{"const": [i]} for i in range(501)]}, "at most 500"),
    ],
)
def test_refused(schema: object, reason: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        _compile(schema)
    assert reason in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        # an escape would make an excluded key or text look like another one
        ({"properties": {"a": INTEGER}}, '{"\\u0061": "x"}'),
        ({"properties": {"a/b": INTEGER}}, '{"a\\/b": "x"}'),
        ({"type": "string", "maxLength": 1}, '"\\u0061b"'),
        ({"properties": {"a": INTEGER}}, '{"a": 1, "a": "x"}'),
        ({"type": "string", "format": "date"}, '"2023-02-29"'),
        ({"type": "string", "format": "date-time"}, '"2100-02-29T10:00:00Z"'),
        ({"type": "string", "format": "time"}, '"10:00:60Z"'),
        ({"type": "string", "format": "date", "allOf": [{"pattern": "^2"}]}, '"1999-01-01"'),
    ],
)
def test_nothing_passes_in_disguise(schema: dict, text: str) -> None:
    assert not _accepts(schema, text)


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (True, '[null, {"a": -1.5e3}]'),
        ({}, '"any"'),
        ({"properties": {"a": INTEGER, "b": {}}}, '{"b": 1, "c": 2, "c": 3}'),
        ({"required": ["z"], "properties": {"a": {}}}, '{"a": 1, "z": 2}'),
        ({"minProperties": 2, "required": ["a"]}, '{"a": 1, "b": 2}'),
        ({"type": "string", "format": "date"}, '"2000-02-29"'),
        ({"type": "string", "format": "date-time"}, '"2024-02-29T23:59:59.5+02:00"'),
        ({"type": ["string", "null"], "x-note": "free", "title": "t", "default": 5}, "null"),
        ({"$defs": {"n": {"anyOf": [{"type": "array", "items": {"$ref": "#/$defs/n"}}, INTEGER]}},
          "$ref": "#/$defs/n"}, "[1, [[], 2]]"),
        ({"$schema": "http://json-schema.org/draft-07/schema#", "items": [INTEGER, {}],
          "additionalItems": False, "type": "array"}, "[1, 2]"),
        ({"$schema": "http://json-schema.org/draft-04/schema#", "minimum": 1,
          "exclusiveMinimum": True, "type": "integer"}, "2"),
        ({"oneOf": [{"type": "object", "required": ["t"], "properties": {"t": {"const": "a"}}},
                    {"type": "object", "required": ["t"], "properties": {"t": {"const": "b"}}}]},
         '{"t": "b"}'),
        ({"enum": ['say "\\"', "tab\t", "é"]}, '"tab\\t"'),
    ],
)  # fmt: skip
def test_accepted(schema: object, text: str) -> None:
    assert _accepts(schema, text)


LAYOUTS = [
    (None, '{"a": [1, 2]}', '{"a":[1,2]}'),
    ({"item_separator": ",", "key_separator": ":"}, '{"a":[1,2]}', '{"a": [1, 2]}'),
    (
        {"item_separator": ",", "key_separator": ":", "whitespace_flexible": True},
        '{\n  "a" : [1,2] }',
        '{"a"; 1}',
    ),
]


@pytest.mark.parametrize(("options", "written", "refused"), LAYOUTS)
def test_the_layout_is_that_of_json_dumps_or_the_schemas_own(
    options: dict | None, written: str, refused: str
) -> None:
    schema = {"type": "object"} | ({"x-guidance": options} if options else {})
    assert _accepts(schema, written)
    assert not _accepts(schema, refused)


def test_a_schema_of_a_megabyte() -> None:
    values = [f"value {i}" for i in range(60_000)]
    assert _accepts({"enum": values}, '"value 59999"')


def test_random_objects_have_their_keys_in_order() -> None:
    names = ["delta", "alpha", "omega"]
    schema = {
        "type": "object",
        "properties": dict.fromkeys(names, INTEGER),
        "required": names,
        "additionalProperties": False,
    }
    output = sample(_compile(schema), VOCABULARY, random.Random(3))
    assert output is not None
    assert list(json.loads(output)) == names
