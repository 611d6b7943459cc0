"""The regular expression of the JSON that a schema, or a pydantic model, allows.

White space stands only where `json.dumps` puts it. Members come in the order of the schema, and all
of them come: what a model may leave out it may as well write.
"""

from __future__ import annotations

import json
import re
from typing import Any

from pydantic import BaseModel

from branchline.errors import InvalidRequest
from branchline.sglang.regexes import JSON_CHARACTER, JSON_STRING

_INTEGER = r"-?(?:0|[1-9][0-9]*)"
_PLAIN = {
    "integer": _INTEGER,
    "number": rf"{_INTEGER}(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?",
    "boolean": "(?:true|false)",
    "null": "null",
}
_DESCRIPTIVE = {"title", "description", "default", "examples", "$defs", "definitions", "$schema"}
_KNOWN = _DESCRIPTIVE | {
    *("type", "properties", "required", "additionalProperties", "items", "minItems", "maxItems"),
    *("enum", "const", "anyOf", "oneOf", "allOf", "$ref", "minLength", "maxLength", "pattern"),
}


def build_regex_from_object(
    object: str | dict[str, Any] | type[BaseModel], whitespace_pattern: str | None = None
) -> str:
    """The regular expression of what a schema allows.

    Args:
        object: a pydantic model, or a JSON schema as text or as a dict.
        whitespace_pattern: what may stand between the marks; one blank or none by default.

    Raises:
        InvalidRequest: the schema has a keyword that has no regular expression here, or refers to
            itself.
    """
    schema: Any = object
    if isinstance(schema, type) and issubclass(schema, BaseModel):
        schema = schema.model_json_schema()
    elif isinstance(schema, str):
        schema = json.loads(schema)
    assert isinstance(schema, dict), schema
    return _Builder(schema, "[ ]?" if whitespace_pattern is None else whitespace_pattern).of(schema)


class _Builder:
    def __init__(self, root: dict[str, Any], space: str) -> None:
        self._root = root
        self._space = space
        self._open: list[str] = []  # the references that are being followed

    def of(self, schema: dict[str, Any]) -> str:
        unknown = schema.keys() - _KNOWN
        if unknown:
            raise InvalidRequest(
                f"{', '.join(sorted(unknown))}: a keyword without a regular expression"
            )
        if "$ref" in schema:
            return self._referred(schema["$ref"])
        if "const" in schema:
            return re.escape(json.dumps(schema["const"]))
        if "enum" in schema:
            return _either([re.escape(json.dumps(value)) for value in schema["enum"]])
        for word in ("anyOf", "oneOf", "allOf"):
            if word in schema and (word != "allOf" or len(schema[word]) == 1):
                return _either([self.of(option) for option in schema[word]])
        kind = schema.get("type")
        if isinstance(kind, list):
            return _either([self.of({**schema, "type": one}) for one in kind])
        match kind:
            case "object":
                return self._object(schema)
            case "array":
                return self._array(schema)
            case "string":
                return _string(schema)
            case str() if kind in _PLAIN:
                return _PLAIN[kind]
        raise InvalidRequest(f"type={kind!r}: must be one of JSON's types")

    def _object(self, schema: dict[str, Any]) -> str:
        members = [
            f"{re.escape(json.dumps(name))}{self._space}:{self._space}{self.of(value)}"
            for name, value in schema.get("properties", {}).items()
        ]
        inner = f"{self._space},{self._space}".join(members)
        return rf"\{{{self._space}{inner}{self._space}\}}"

    def _array(self, schema: dict[str, Any]) -> str:
        if "items" not in schema:
            raise InvalidRequest("an array without items: its values could be anything")
        item = self.of(schema["items"])
        low, high = schema.get("minItems", 0), schema.get("maxItems")
        most = "" if high is None else high - 1
        more = f"(?:{self._space},{self._space}{item}){{{max(low - 1, 0)},{most}}}"
        filled = f"{item}{more}" if high is None or high > 0 else ""
        inner = filled if low > 0 else f"(?:{filled})?"
        return rf"\[{self._space}{inner}{self._space}\]"

    def _referred(self, reference: str) -> str:
        if reference in self._open:
            raise InvalidRequest(f"$ref={reference!r}: refers to itself, so it has no end")
        self._open.append(reference)
        regex = self.of(self._resolve(reference))
        self._open.pop()
        return regex

    def _resolve(self, reference: str) -> dict[str, Any]:
        value: Any = self._root
        for part in reference.removeprefix("#/").split("/"):
            if not isinstance(value, dict) or part not in value:
                raise InvalidRequest(f"$ref={reference!r}: there is nothing of that name")
            value = value[part]
        assert isinstance(value, dict), value
        return value


def _string(schema: dict[str, Any]) -> str:
    if "pattern" in schema:
        return f'"{schema["pattern"].removeprefix("^").removesuffix("$")}"'
    low, high = schema.get("minLength", 0), schema.get("maxLength")
    if (low, high) == (0, None):
        return JSON_STRING
    return f'"{JSON_CHARACTER}{{{low},{"" if high is None else high}}}"'


def _either(options: list[str]) -> str:
    return f"(?:{'|'.join(options)})"
