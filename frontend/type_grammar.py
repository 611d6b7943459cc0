"""What a model may write for a value of a Python type: the grammar of what `typed.parse` reads.

A scalar is a regular expression, and what has parts is JSON. A number has no end of its own: it
ends where the model writes a mark or a blank after it, or one of the gen's stop strings. So a blank
may come before any other scalar, if the model likes, but not before a number.
"""

from __future__ import annotations

import functools
import json
import re
import types
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.errors import PydanticInvalidForJsonSchema

from branchline.constraint import checked, ended, one_of
from branchline.sampling_params import MAX_STOP_STRINGS
from branchline.schema_of import reads_json, schema_of
from branchline.typed import adapter

if TYPE_CHECKING:
    from branchline.sampling_params import SamplingParams

_SIGN = "[-+]?"
_INT = f"{_SIGN}[0-9]+"
_FLOAT = rf"{_SIGN}[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?"
_BOOL = "[Tt]rue|[Ff]alse|[Yy]es|[Nn]o"
_NONE = "[Nn]one|null"
_PATTERNS: dict[Any, str] = {int: _INT, float: _FLOAT, bool: _BOOL, None: _NONE, type(None): _NONE}
# What ends a number, beside the gen's own stops; a float's point is one of its own.
_MARKS = (" ", "\n", "\t", ",", ";", ":", "!", "?", ")", "]", "}", "'", '"', "%", "/", "*", "=")
_INT_STOPS, _FLOAT_STOPS = (*_MARKS, "."), _MARKS
MAX_LISTED = 1000  # whole numbers of a range that are listed one by one

_ESCAPES = re.compile(r"\\.", re.DOTALL)
_CLASSES = re.compile(r"\[\^?\]?[^\]]*\]")
_GROUPS = re.compile(r"\([^()]*\)")
_ANCHORS = re.compile(r"\\[AZzbB]")
_ANYTHING = "(?s:.*)"


@dataclass(frozen=True, slots=True)
class Form:
    """What the texts of a type look like."""

    regex: str | None = None  # of scalars
    schema: str | None = None  # of JSON
    stops: tuple[str, ...] = ()  # what ends it, where more could always follow
    spaced: bool = True  # a blank before it is no part of it
    is_json: bool = False  # a scalar that reads the same there


def held_to(params: SamplingParams, wanted: Any) -> SamplingParams:
    """The parameters of a gen whose text is to be a value of a type.

    They stay as they are where any text is one, or where the type mixes JSON with bare text.
    """
    form = form_of(wanted)
    if form is None:
        return params
    if form.schema is not None:
        return replace(params, grammar=checked("json_schema", form.schema))
    assert form.regex is not None, "it is of one kind or the other"
    if not form.stops:
        regex = f"{' ?' if form.spaced else ''}(?:{form.regex})"
        return replace(params, grammar=checked("regex", regex))
    stop = tuple(dict.fromkeys((*params.stop, *form.stops)))[:MAX_STOP_STRINGS]
    return replace(params, stop=stop, grammar=checked("regex", ended(form.regex, stop)))


def form_of(wanted: Any) -> Form | None:
    """The form of a type; None where nothing can be said."""
    try:
        return _cached_form(wanted)
    except TypeError:  # not hashable, such as Annotated with a list
        return _known_form(wanted)


@functools.lru_cache(maxsize=256)
def _cached_form(wanted: Any) -> Form | None:
    return _known_form(wanted)


def _known_form(wanted: Any) -> Form | None:
    try:
        return _form(wanted)
    except PydanticInvalidForJsonSchema:  # it is read by a function of its own
        return None


def _form(wanted: Any) -> Form | None:
    base = get_args(wanted)[0] if get_origin(wanted) is Annotated else wanted
    if get_origin(base) in (Union, types.UnionType):
        return _union(base)
    if get_origin(base) is Literal:
        return Form(one_of([str(option) for option in get_args(base)]))
    if isinstance(base, type) and issubclass(base, Enum):
        members = list(base)
        names = [member.name for member in members]
        return Form(one_of([str(member.value) for member in members] + names))
    if base is str:
        return None if base is wanted else _annotated_text(wanted)
    if base in (int, float):
        return _number(base, schema_of(adapter(wanted)))
    if base in _PATTERNS:
        return Form(_PATTERNS[base], is_json=True)
    return _json_form(wanted)


def _number(base: type, schema: dict[str, Any]) -> Form:
    """The form of a number. The bounds of a float, and wide ones, are left to the parser."""
    low, high = schema.get("minimum"), schema.get("maximum")
    low = schema["exclusiveMinimum"] + 1 if "exclusiveMinimum" in schema else low
    high = schema["exclusiveMaximum"] - 1 if "exclusiveMaximum" in schema else high
    pattern = _PATTERNS[base]
    if low is not None and low >= 0:
        pattern = pattern.removeprefix(_SIGN)
    if base is float:
        return Form(pattern, stops=_FLOAT_STOPS, spaced=False, is_json=True)
    if low is not None and high is not None and high - low < MAX_LISTED:
        pattern = one_of([str(number) for number in range(low, high + 1)])
    return Form(pattern, stops=_INT_STOPS, spaced=False, is_json=True)


def _union(union: Any) -> Form | None:
    members = get_args(union)
    forms = [_form(member) for member in members]
    if any(form is None for form in forms):
        return None
    known = [form for form in forms if form is not None]
    if all(form.regex is not None for form in known):
        regex = "|".join(dict.fromkeys(str(form.regex) for form in known))
        ends = [set(form.stops) for form in known if form.stops]
        stops = tuple(mark for mark in _INT_STOPS if ends and all(mark in one for one in ends))
        return Form(regex, stops=stops, spaced=all(form.spaced for form in known))
    if all(form.schema is not None or form.is_json for form in known):
        return _json_form(union)
    return None


def _json_form(wanted: Any) -> Form:
    return Form(schema=json.dumps(schema_of(adapter(wanted))))


def _annotated_text(wanted: Any) -> Form | None:
    """The form of `Annotated[str, …]`: its pattern or else its lengths."""
    if reads_json(adapter(wanted)):
        return _json_form(wanted)
    schema = schema_of(adapter(wanted))
    if "pattern" in schema:
        pattern = _anywhere(schema["pattern"])
        return None if pattern is None else Form(pattern, spaced=False)
    low, high = schema.get("minLength", 0), schema.get("maxLength", "")
    return Form(rf"(?s:.{{{low},{high}}})", spaced=False) if low or high != "" else None


def _anywhere(pattern: str) -> str | None:
    """The texts in which a pattern is found; None where its anchors are not at its ends."""
    inner = pattern.removeprefix("^")
    plain = _CLASSES.sub("", _ESCAPES.sub("", inner))
    begins, ends = inner != pattern, inner.endswith("$") and plain.endswith("$")
    if ends:
        inner, plain = inner[:-1], plain[:-1]
    if "^" in plain or "$" in plain or _ANCHORS.search(inner):
        return None
    if (begins or ends) and _has_alternatives(plain):
        return None
    found = f"{'' if begins else _ANYTHING}(?:{inner}){'' if ends else _ANYTHING}"
    try:
        re.compile(found)
    except re.error:  # flags in its middle, or another dialect
        return None
    return found


def _has_alternatives(plain: str) -> bool:
    """Whether there is a `|` outside of all groups."""
    while (shorter := _GROUPS.sub("", plain)) != plain:
        plain = shorter
    return "|" in plain
