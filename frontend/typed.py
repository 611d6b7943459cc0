"""Typed results: what a text that a model wrote is as a value of a Python type.

A scalar (a number, a bool, `Literal`, `Enum`, None) is the text without the white space around it.
Anything with parts (a list, a dict, a dataclass, a pydantic model …) is JSON: the whole text, what
a code fence holds, or the first object or array in it. A union is the first of its members that
the text is.
"""

from __future__ import annotations

import functools
import json
import re
import types
from enum import Enum
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import PydanticSchemaGenerationError, PydanticUserError, TypeAdapter, ValidationError

from branchline.errors import BranchlineError, InvalidRequest

SHOWN_CHARS = 80
_FENCE = re.compile(r"```[\w-]*\s*\n(.*?)```", re.DOTALL)
_JSON_START = re.compile(r"[{\[]")


class InvalidValue(BranchlineError, ValueError):
    """The text that a model wrote is not a value of the type it was to be.

    Attributes:
        text: the text.
        type: the type.
    """

    def __init__(self, text: str, wanted: Any, why: str) -> None:
        shown = text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}…"
        super().__init__(f"the model wrote {shown!r}, which is not {type_name(wanted)}: {why}")
        self.text = text
        self.type = wanted


def check_type(wanted: Any) -> None:
    """Refuse a type that no text can be a value of.

    Raises:
        InvalidRequest: it is none.
    """
    try:
        adapter(wanted)
    except (PydanticSchemaGenerationError, PydanticUserError, TypeError, NameError) as error:
        raise InvalidRequest(
            f"type={wanted!r}: not a type that text can be parsed to ({error})"
        ) from None


def parse(text: str, wanted: Any) -> Any:
    """The value of a type that a text is.

    Raises:
        InvalidValue: it is none.
    """
    base = get_args(wanted)[0] if get_origin(wanted) is Annotated else wanted
    if base is str and base is wanted:
        return text
    if get_origin(base) in (Union, types.UnionType):
        return _parse_union(text, base)
    if get_origin(base) is Literal:
        return _parse_option(text, wanted, {str(option): option for option in get_args(base)})
    if isinstance(base, type) and issubclass(base, Enum):
        options = {member.name: member for member in base}
        return _parse_option(text, wanted, options | {str(m.value): m for m in base})
    if base in (str, int, float, bool, None, type(None)):
        return _parse_scalar(text, wanted, base)
    return _parse_json(text, wanted)


def type_name(wanted: Any) -> str:
    """A type as its author wrote it."""
    plain = isinstance(wanted, type) and not get_args(wanted)
    return wanted.__name__ if plain else str(wanted).replace("typing.", "")


def _parse_union(text: str, union: Any) -> Any:
    faults = []
    for member in get_args(union):
        try:
            return parse(text, member)
        except InvalidValue as error:
            faults.append(f"{type_name(member)}: {str(error).rpartition(': ')[2]}")
    raise InvalidValue(text, union, "; ".join(faults))


def _parse_option(text: str, wanted: Any, options: dict[str, Any]) -> Any:
    stripped = text.strip()
    if stripped not in options:
        raise InvalidValue(text, wanted, f"it can be {', '.join(map(repr, options))}")
    return options[stripped]


def _parse_scalar(text: str, wanted: Any, base: Any) -> Any:
    stripped = text.strip()
    if base in (None, type(None)):
        if stripped.lower() not in ("none", "null"):
            raise InvalidValue(text, wanted, "it can be None or null")
        return None
    try:
        return adapter(wanted).validate_python(text if base is str else stripped)
    except ValidationError as error:
        raise InvalidValue(text, wanted, explain(error)) from None


def _parse_json(text: str, wanted: Any) -> Any:
    try:
        return adapter(wanted).validate_json(_json_in(text))
    except ValidationError as error:
        raise InvalidValue(text, wanted, explain(error)) from None


def _json_in(text: str) -> str:
    """The part of a text that is JSON; all of it where none is."""
    fence = _FENCE.search(text)
    inner = (fence.group(1) if fence else text).strip()
    for start in _JSON_START.finditer(inner):
        try:
            _, end = json.JSONDecoder().raw_decode(inner, start.start())
        except ValueError:
            continue
        return inner[start.start() : end]
    return inner


def explain(error: ValidationError) -> str:
    """The first faults, each with where it is."""
    faults = []
    for fault in error.errors(include_url=False)[:3]:
        where = ".".join(str(part) for part in fault["loc"])
        faults.append(f"{where}: {fault['msg']}" if where else fault["msg"])
    return "; ".join(faults)


def adapter(wanted: Any) -> TypeAdapter[Any]:
    """Pydantic's view of a type. Raises what pydantic does where it has none."""
    try:
        return _cached_adapter(wanted)
    except TypeError:  # not hashable, such as Annotated with a list
        return TypeAdapter(wanted)


@functools.lru_cache(maxsize=256)
def _cached_adapter(wanted: Any) -> TypeAdapter[Any]:
    return TypeAdapter(wanted)
