"""Grammars in llguidance's dialect of Lark: what they may not ask for is refused by name."""

from __future__ import annotations

import json
import re

from branchline.errors import InvalidRequest
from branchline.runtime.grammar.schema import MAX_LITERAL, prepared

# Comments, strings and regular expressions, so that nothing inside them is taken for the rest; a
# special token, an attribute that samples, an inline schema.
_PART = re.compile(
    r"""//[^\n]*
    | "(?:\\.|[^"\\\n])*"
    | /(?:\\.|[^/\\\n])+/
    | (?P<special><[^<>\s]+>)
    | \b(?P<attribute>temperature)\s*=
    | (?P<json>%json\s*(?=[{]))
    """,
    re.VERBOSE,
)


def checked_lark(source: str) -> str:
    """The same grammar, its inline JSON Schemas checked and given our options.

    Raises:
        InvalidRequest: it names a special token, which no output may hold, or sets a temperature,
            which is the request's; a literal is too long; or one of its schemas
            cannot be enforced.
    """
    parts: list[str] = []
    at = 0
    while part := _PART.search(source, at):
        end = part.end()
        text = part.group()
        if part["special"]:
            raise InvalidRequest(f"{text} is a special token, and a text holds none")
        if len(text) > MAX_LITERAL:
            raise InvalidRequest(f"{text[:20]}… has more than {MAX_LITERAL} characters")
        if part["attribute"]:
            raise InvalidRequest("a rule's temperature is not supported: it is the request's")
        if part["json"]:
            schema, end = _inline(source, end)
            text += schema
        parts += [source[at : part.start()], text]
        at = end
    return "".join([*parts, source[at:]])


def _inline(source: str, at: int) -> tuple[str, int]:
    """The schema that begins at `at`, prepared, and where it ends."""
    try:
        schema, end = json.JSONDecoder().raw_decode(source, at)
    except (json.JSONDecodeError, RecursionError) as error:
        raise InvalidRequest(f"its %json is not JSON: {error}") from None
    return json.dumps(prepared(schema)), end
