"""What a gen's text must match: one grammar, however it was given."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, TypeAdapter

from branchline.errors import InvalidRequest
from branchline.grammar import Grammar
from branchline.schema_of import schema_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from branchline.grammar import GrammarKind

_META = re.compile(r"[\\.^$*+?{}\[\]|()]")


def only_one(given: Mapping[str, object]) -> None:
    """Refuse more than one way of saying what a text must be.

    Raises:
        InvalidRequest: several are given.
    """
    names = [name for name, value in given.items() if value is not None]
    if len(names) > 1:
        raise InvalidRequest(
            f"{' and '.join(names)}: a gen's text can be held to one of them only; take one"
        )


def constraint(
    regex: str | None, json_schema: object, grammar: Grammar | str | None
) -> Grammar | None:
    """The grammar that is given, if any is.

    Raises:
        InvalidRequest: it is none.
    """
    if regex is not None:
        return regex_grammar(regex)
    if json_schema is not None:
        return schema_grammar(json_schema)
    if grammar is None or isinstance(grammar, Grammar):
        return grammar
    if not isinstance(grammar, str):
        raise InvalidRequest(f"grammar={grammar!r}: must be a Grammar, or one of Lark as text")
    return checked("lark", grammar)


def regex_grammar(pattern: str) -> Grammar:
    """A regular expression of Python's syntax, which the whole text matches.

    Raises:
        InvalidRequest: it is none.
    """
    try:
        re.compile(pattern)
    except (re.error, TypeError, RecursionError, OverflowError) as error:
        raise InvalidRequest(f"regex={pattern!r}: not a regular expression: {error}") from None
    return checked("regex", pattern)


def schema_grammar(schema: object) -> Grammar:
    """A JSON Schema: as a dict, as JSON text or as a pydantic model.

    Raises:
        InvalidRequest: it is none of them.
    """
    if isinstance(schema, type) and issubclass(schema, BaseModel):
        schema = schema_of(TypeAdapter(schema))
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except ValueError as error:
            raise InvalidRequest(f"json_schema={_short(schema)}: not JSON: {error}") from None
    if not isinstance(schema, dict | bool):
        raise InvalidRequest(
            f"json_schema={_short(schema)}: must be a schema as a dict or as JSON text, or a "
            "pydantic model"
        )
    try:
        return checked("json_schema", json.dumps(schema))
    except (TypeError, RecursionError) as error:
        raise InvalidRequest(f"json_schema={_short(schema)}: cannot be JSON: {error}") from None


def one_of(texts: Sequence[str]) -> str:
    """The regular expression of these texts."""
    return "|".join(escaped(text) for text in dict.fromkeys(texts))


def ended(pattern: str, stops: Sequence[str]) -> str:
    """A text that goes on only with one of the stop strings, and then with anything.

    What a stop string begins is cut off there. So a model that would write "24 hours" ends a number
    by the token " hours"; if it could write digits only, it would write more of them.
    """
    return f"(?:{pattern})(?:(?:{one_of(stops)})(?s:.*))?"


def escaped(text: str) -> str:
    """The regular expression of one text."""
    return _META.sub(r"\\\g<0>", text)


def checked(kind: GrammarKind, source: str) -> Grammar:
    """A grammar.

    Raises:
        InvalidRequest: its source is too long.
    """
    try:
        return Grammar(kind, source)
    except ValueError as error:
        raise InvalidRequest(str(error)) from None


def _short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 80 else f"{shown[:79]}…"
