"""The JSON Schema of a Python type, as far as a grammar can hold a model to it.

What is left out is checked when the text is parsed: a schema from here allows all that the type
does, and perhaps more.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic.json_schema import GenerateJsonSchema

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import TypeAdapter

# Keywords with schemas in them: by name, in a list, or one.
_BY_NAME = ("properties", "patternProperties", "$defs")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_ONE = ("items", "additionalProperties")
# Those that say what a value is and are kept as they are.
_PLAIN = frozenset(
    (
        *("$ref", "type", "enum", "const", "required", "minItems", "maxItems", "pattern", "format"),
        *("minLength", "maxLength", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
        "multipleOf",
    )
)
_FORMATS = frozenset(
    (
        *("date-time", "time", "date", "duration", "email", "hostname"),
        *("ipv4", "ipv6", "uuid", "uri"),
    )
)
# In patterns: look-around, and inside of classes what some dialects take for operators.
_UNCLEAR = re.compile(r"\(\?<?[=!]|\[[^\]]*(?:\[|&&|--|~~)")


def schema_of(adapter: TypeAdapter[Any]) -> dict[str, Any]:
    """The schema of the JSON that a type's values are read from."""
    schema = adapter.json_schema(schema_generator=_Quiet)
    if reads_json(adapter):
        named = {word: schema[word] for word in ("$defs",) if word in schema}
        schema = named | schema.get("contentSchema", {})
    return enforceable(schema)


def described_schema(adapter: TypeAdapter[Any]) -> dict[str, Any]:
    """The schema as people and models read it, with descriptions; without pydantic's titles."""
    schema = _untitled(adapter.json_schema(schema_generator=_Quiet))
    assert isinstance(schema, dict), schema
    return schema


def reads_json(adapter: TypeAdapter[Any]) -> bool:
    """Whether it is pydantic's `Json[…]`: a text that is JSON itself."""
    schema = adapter.json_schema(schema_generator=_Quiet)
    return bool(schema.get("contentMediaType") == "application/json")


class _Quiet(GenerateJsonSchema):
    """Does not warn of defaults that are no JSON: they are left out."""

    ignored_warning_kinds: ClassVar = {"skipped-choice", "non-serializable-default"}  # type: ignore[misc]


def enforceable(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A schema of pydantic's without descriptions, and without what no grammar enforces.

    An object has the members that are named and no others, unless it says that it may.
    """
    kept: dict[str, Any] = {}
    for word, value in schema.items():
        if word in _BY_NAME:
            kept[word] = {name: _inner(one) for name, one in value.items()}
        elif word in _LISTS:
            # A union of pydantic's is read by its first member that fits, so one of them is any.
            kept["anyOf" if word == "oneOf" else word] = [_inner(one) for one in value]
        elif word in _ONE:
            kept[word] = _inner(value)
        elif word in _PLAIN and _is_enforced(word, value):
            kept[word] = value
    if "properties" in kept:
        kept.setdefault("additionalProperties", False)
    return kept


def _inner(schema: Any) -> Any:
    return enforceable(schema) if isinstance(schema, dict) else schema


def _is_enforced(word: str, value: Any) -> bool:
    if word == "format":
        return value in _FORMATS
    return word != "pattern" or _UNCLEAR.search(value) is None


def _untitled(schema: Any, names: bool = False) -> Any:
    """Without titles, which repeat the names; in a mapping by name a title is a name itself."""
    if isinstance(schema, list):
        return [_untitled(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        word: _untitled(value, not names and word in _BY_NAME)
        for word, value in schema.items()
        if names or word != "title"
    }
