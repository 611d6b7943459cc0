"""A user's grammar as llguidance reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llguidance import LLMatcher

from branchline.errors import InvalidRequest
from branchline.runtime.grammar.ebnf import lark_of_ebnf
from branchline.runtime.grammar.lark import checked_lark
from branchline.runtime.grammar.schema import prepared_schema
from branchline.runtime.grammar.structural_tag import lark_of_structural_tag

if TYPE_CHECKING:
    from branchline.grammar import Grammar


def guidance_source(grammar: Grammar) -> str:
    """The source of a grammar for `LLMatcher`.

    Raises:
        InvalidRequest: it is malformed, or asks for what cannot be enforced.
    """
    try:
        grammar.source.encode()
    except UnicodeEncodeError:
        raise InvalidRequest("it holds half of a surrogate pair, which is not text") from None
    source: str
    match grammar.kind:
        case "json_schema":
            source = LLMatcher.grammar_from_json_schema(prepared_schema(grammar.source))
        case "lark":
            source = LLMatcher.grammar_from_lark(checked_lark(grammar.source))
        case "ebnf":
            source = LLMatcher.grammar_from_lark(lark_of_ebnf(grammar.source))
        case "structural_tag":
            source = LLMatcher.grammar_from_lark(lark_of_structural_tag(grammar.source))
        case "regex":
            raise AssertionError("regular expressions are compiled by regex.py")
    return source
