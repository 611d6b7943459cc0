"""Whether a `Mock` may say what its script has, where a gen says what the text must match."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from branchline.errors import InvalidRequest
from branchline.mock_tokens import END

if TYPE_CHECKING:
    from branchline.grammar import Grammar
    from branchline.mock_answer import Answered

SHOWN_CHARS = 200


def check_answer(said: Answered, grammar: Grammar) -> None:
    """Refuse an answer that no model held to the grammar would give.

    One that a stop or `max_tokens` has cut is not looked at: it may be the beginning of a match.

    Raises:
        InvalidRequest: the text does not match the regular expression, or is not JSON.
    """
    finish = said.updates[-1].finish
    assert finish is not None, "the last update has it"
    if finish.matched != END:
        return
    text = "".join(update.text for update in said.updates)
    shown = f"the mock's answer {text[:SHOWN_CHARS]!r}"
    if grammar.kind == "regex" and re.fullmatch(grammar.source, text) is None:
        raise InvalidRequest(f"{shown} does not match the gen's regex {grammar.source!r}")
    if grammar.kind == "json_schema":
        try:
            json.loads(text)
        except ValueError as error:
            raise InvalidRequest(f"{shown} is not JSON, as its json_schema asks: {error}") from None
