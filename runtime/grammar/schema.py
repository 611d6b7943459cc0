r"""JSON Schemas: what is enforced goes on to llguidance, all else is refused by name and place.

Refused is also what llguidance would pass over: keywords that no draft knows (a misspelt one
otherwise constrains nothing), a `format` beside numbers, options that make it lenient. Names that
begin with "x-" are free for annotations.

The output is one line, written as Python's json.dumps writes it: `{"a": 1, "b": [2, 3]}`; keys come
in the schema's order, those required first where they are not among `properties`. So whatever is
not a value is forced, and costs no step. Another layout is the schema's choice, by
`"x-guidance": {"whitespace_flexible": true, "item_separator": ",", "key_separator": ":"}` (any
white space) or any of `_OPTIONS`. Strings are written without \u escapes: one that a schema
excludes cannot come back in disguise, and control characters do not occur in them.

Keys that a schema does not name may come twice; JSON's readers take the last.
"""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

from branchline.errors import InvalidRequest
from branchline.runtime.grammar.schema_keywords import (
    ANNOTATIONS,
    DRAFTS,
    LATEST,
    NAMED,
    NARROWER,
    ONE,
    SEVERAL,
    SINCE,
    UNTIL,
    VALUES,
)

_LAYOUT = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}
_OPTIONS = frozenset({*_LAYOUT, "whitespace_pattern"})
_ESCAPES = '"\\bfnrt'

# llguidance holds every one of them open at once, and gives up at four times as many.
MAX_ALTERNATIVES = 500

# A text that is forced is worked out at once, on the engine's thread: 4 ms for 1,000 characters.
MAX_LITERAL = 8192

# A control character other than \b \t \n \f \r, as json.dumps writes it.
_CONTROL = re.compile(r"(?<!\\)(?:\\\\)*\\u00[01]|\x7f")


def prepared_schema(source: str) -> str:
    """A JSON Schema as llguidance reads it, with our options in it.

    Raises:
        InvalidRequest: it is not JSON, not a schema, or not to be enforced.
    """
    return json.dumps(prepared(parsed(source)))


def parsed(source: str) -> Any:
    """A JSON text; InvalidRequest where it is none."""
    try:
        return json.loads(source, parse_constant=_no_constant)
    except RecursionError:
        raise InvalidRequest("it is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise InvalidRequest(f"it is not JSON: {error}") from None


def prepared(schema: Any) -> dict[str, Any]:
    """A checked schema with our options in it."""
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        raise InvalidRequest("a schema is an object; nothing else can be satisfied")
    options = schema.get("x-guidance", {})
    if not isinstance(options, dict) or not options.keys() <= _OPTIONS:
        raise InvalidRequest(f"x-guidance takes only {', '.join(sorted(_OPTIONS))}")
    _Check(schema).run()
    return schema | {"x-guidance": _LAYOUT | options | {"json_allowed_escapes": _ESCAPES}}


def place_of(source: str, error: str) -> str:
    """Where in a schema that was prepared llguidance found an error, as " at #/…", or nothing."""
    check = _Check(parsed(source))
    check.run()
    # An error repeats the pattern, the reference or the keyword that it is about.
    blamed = [(len(text), place) for place, text in check.named if text and text in error]
    longest = max((length for length, _ in blamed), default=0)
    places = [place for length, place in blamed if length == longest]
    return f" at {places[0]}" + (" or elsewhere" if len(places) > 1 else "") if places else ""


class _Check:
    """One walk over a schema and all that are inside it."""

    def __init__(self, root: dict[str, Any]) -> None:
        self.named: list[tuple[str, str]] = []  # places, and what an error about them repeats
        self._root = root
        self._draft = self._find_draft(root.get("$schema"))

    def run(self) -> None:
        """Walk; InvalidRequest at the first thing that cannot be enforced. Completes formats."""
        rest: list[tuple[str, Any]] = [("#", self._root)]
        while rest:
            place, schema = rest.pop()
            if isinstance(schema, bool):
                continue
            if not isinstance(schema, dict):
                raise InvalidRequest(f"{place} is not a schema: an object, true or false")
            for keyword, value in schema.items():
                rest += self._keyword(place, keyword, value)
            self._together(place, schema)
            if schema.get("format") in NARROWER:
                pattern = {"pattern": NARROWER[schema["format"]]}
                schema["allOf"] = [*schema.get("allOf", ()), pattern]

    def _find_draft(self, uri: Any) -> int:
        if uri is None:
            return LATEST
        draft = DRAFTS.get(uri.removesuffix("#")) if isinstance(uri, str) else None
        if draft is None:
            raise InvalidRequest(f'"$schema" {uri!r} is not supported; drafts 4 to 2020-12 are')
        return draft

    def _keyword(self, place: str, keyword: str, value: Any) -> list[tuple[str, Any]]:
        """Check one keyword; returns the schemas inside it."""
        here = f"{place}/{_escaped(keyword)}"
        if not SINCE.get(keyword, 0) <= self._draft <= UNTIL.get(keyword, LATEST):
            _refuse(keyword, place, "this draft does not have it")
        if keyword in {"$schema", "x-guidance"} and place != "#":
            _refuse(keyword, place, "it belongs to the root")
        if keyword == "items" and isinstance(value, list) and self._draft < LATEST:
            return [(f"{here}/{i}", one) for i, one in enumerate(value)]
        if keyword in ONE:
            return [(here, value)]
        if keyword in SEVERAL:
            if not isinstance(value, list) or not value:
                raise InvalidRequest(f"{here} is not a list of schemas")
            self.named.append((here, keyword))
            return [(f"{here}/{i}", one) for i, one in enumerate(value)]
        if keyword in NAMED:
            if not isinstance(value, dict):
                raise InvalidRequest(f"{here} is not an object of schemas")
            for name in value if keyword == "patternProperties" else ():
                self._value(f"{here}/{_escaped(name)}", "pattern", name)
            return [(f"{here}/{_escaped(name)}", one) for name, one in value.items()]
        if keyword in VALUES:
            self._value(here, keyword, value)
        elif keyword not in ANNOTATIONS and not keyword.startswith("x-"):
            _refuse(keyword, place, "it is not supported")
        return []

    def _value(self, here: str, keyword: str, value: Any) -> None:
        wanted, holds = VALUES[keyword]
        if keyword in {"exclusiveMinimum", "exclusiveMaximum"} and self._draft == 4:
            wanted, holds = "true or false", lambda value: isinstance(value, bool)
        if keyword in {"pattern", "$ref"} and isinstance(value, str):
            fragment = value.rpartition("#")[2]
            self.named.append((here, fragment if keyword == "$ref" and "/" in fragment else value))
        if not holds(value):
            raise InvalidRequest(f"{here} is {_shown(value)}, and must be {wanted}")

    def _together(self, place: str, schema: dict[str, Any]) -> None:
        """What several keywords of one schema must not say at once."""
        required = set(schema.get("required", ()))
        optional = schema.get("properties", {}).keys() - required
        branches = max((len(schema.get(name, ())) for name in ("anyOf", "oneOf")), default=0)
        if max(len(optional), branches) > MAX_ALTERNATIVES:
            raise InvalidRequest(
                f"{place} has {max(len(optional), branches)} optional properties or branches; "
                f"at most {MAX_ALTERNATIVES} can be open at one place"
            )
        if schema.get("minProperties", 0) > len(required) + 1:
            # Two keys that are not named could be the same.
            _refuse("minProperties", place, "more keys than it requires by name cannot be counted")
        for keyword in schema.keys() & {"const", "enum"}:
            values = schema["enum"] if keyword == "enum" else [schema["const"]]
            written = [json.dumps(value) for value in values]
            if max(map(len, written)) > MAX_LITERAL:
                _refuse(keyword, place, f"a value has more than {MAX_LITERAL} characters")
            if any(map(_CONTROL.search, written)):
                _refuse(keyword, place, "it holds a control character, which is not written")


def _refuse(keyword: str, place: str, why: str) -> NoReturn:
    raise InvalidRequest(f'keyword "{keyword}" at {place} cannot be enforced: {why}')


def _no_constant(name: str) -> NoReturn:
    raise InvalidRequest(f"{name} is not JSON")


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:39] + "…"
