"""The keywords of JSON Schema that are enforced, and what their values must be."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, TypeGuard
from urllib.parse import unquote

if TYPE_CHECKING:
    from collections.abc import Callable

LATEST = 2020

DRAFTS = {
    "http://json-schema.org/draft-04/schema": 4,
    "http://json-schema.org/draft-06/schema": 6,
    "http://json-schema.org/draft-07/schema": 7,
    "https://json-schema.org/draft/2019-09/schema": 2019,
    "https://json-schema.org/draft/2020-12/schema": LATEST,
}

# The drafts that some keywords begin and end with; elsewhere they would be ignored.
SINCE = {"const": 6, "prefixItems": 2020}
UNTIL = {"additionalItems": 2019}

# What holds schemas: one, a list of them, some by name.
ONE = frozenset({"items", "additionalItems", "additionalProperties"})
SEVERAL = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions"})

# What says nothing about which values are valid.
ANNOTATIONS = frozenset(
    {"$anchor", "$comment", "$id", "$schema", "contentEncoding", "contentMediaType"}
    | {"contentSchema", "default", "deprecated", "description", "discriminator", "example"}
    | {"examples", "id", "readOnly", "title", "writeOnly"}
)

FORMATS = frozenset(
    {"date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid"}
)

# What llguidance's formats leave open: 29 February in any year, leap seconds at any time.
_LEAP_YEAR = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
_DAY = (
    "(?:[0-9]{4}-(?:0[13-9]|1[0-2])-[0-9]{2}|[0-9]{4}-02-(?:[01][0-9]|2[0-8])"
    f"|{_LEAP_YEAR}-02-29)"
)
_TIME = "[0-9]{2}:[0-9]{2}:[0-5].*"
NARROWER = {"date": f"^{_DAY}$", "date-time": f"^{_DAY}[Tt]{_TIME}$", "time": f"^{_TIME}$"}

_TYPES = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})


def _text(value: Any) -> TypeGuard[str]:
    return isinstance(value, str)


def _number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _count(value: Any) -> bool:
    return _number(value) and value >= 0 and isinstance(value, int)


def _types(value: Any) -> bool:
    names = value if isinstance(value, list) else [value]
    return bool(names) and all(_text(name) and name in _TYPES for name in names)


def _names(value: Any) -> bool:
    return isinstance(value, list) and all(map(_text, value))


def _reference(value: Any) -> bool:
    """A reference whose fragment, if it is a pointer, leads to a schema that the walk has seen."""
    if not _text(value):
        return False
    fragment = unquote(value.partition("#")[2])
    if not fragment.startswith("/"):
        return True
    steps = fragment[1:].split("/")
    at = 0
    while at < len(steps):
        if steps[at] in NAMED | SEVERAL or _is_tuple_item(steps, at):
            at += 2
        elif steps[at] in ONE:
            at += 1
        else:
            return False
    return at == len(steps)


def _is_tuple_item(steps: list[str], at: int) -> bool:
    return steps[at] == "items" and at + 1 < len(steps) and steps[at + 1].isdigit()


def same_pattern(value: Any) -> bool:
    """A pattern that means the same to llguidance and to JSON Schema's own dialect."""
    return _text(value) and _CLASS_OPERATOR.search(value) is None


# Inside a class, outside of escapes: a bracket, && -- or ~~, which are operators to llguidance.
_CLASS_OPERATOR = re.compile(r"(?:^|[^\\])(?:\\\\)*\[\^?(?:\\.|[^\]\\])*?(?:\[|&&|--|~~)")

VALUES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "$ref": ('a reference to a schema, as "#/$defs/name"', _reference),
    "type": (f"one or several of {', '.join(sorted(_TYPES))}", _types),
    "const": ("anything", lambda _: True),
    "enum": ("a list that is not empty", lambda value: isinstance(value, list) and bool(value)),
    "format": (f"one of {', '.join(sorted(FORMATS))}", lambda value: value in FORMATS),
    "pattern": ("a pattern without brackets, &&, -- or ~~ inside a class", same_pattern),
    "minLength": ("a whole number from 0", _count),
    "maxLength": ("a whole number from 0", _count),
    "minItems": ("a whole number from 0", _count),
    "maxItems": ("a whole number from 0", _count),
    "minProperties": ("a whole number from 0", _count),
    "maxProperties": ("a whole number from 0", _count),
    "minimum": ("a number", _number),
    "maximum": ("a number", _number),
    "exclusiveMinimum": ("a number", _number),
    "exclusiveMaximum": ("a number", _number),
    "multipleOf": ("a number above 0", lambda value: _number(value) and value > 0),
    "required": ("a list of names", _names),
}
