"""What a generation's text must match: a grammar as the user writes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import ConfigDict

MAX_GRAMMAR_CHARS = 1024 * 1024

# regex: Python's syntax, the whole output matches. json_schema: a schema as JSON text.
# lark: llguidance's dialect. ebnf: GBNF, as llama.cpp and xgrammar read it.
# structural_tag: JSON text {"structures": [{"begin", "schema", "end"}], "triggers": [...]}.
GrammarKind = Literal["regex", "json_schema", "lark", "ebnf", "structural_tag"]


@dataclass(frozen=True, slots=True)
class Grammar:
    """A language, by its source text. What it means is decided by the runtime that compiles it.

    Raises:
        ValueError: the source is too long.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    kind: GrammarKind
    source: str

    def __post_init__(self) -> None:
        if len(self.source) > MAX_GRAMMAR_CHARS:
            raise ValueError(
                f"a {self.kind} of {len(self.source)} characters: at most {MAX_GRAMMAR_CHARS}"
            )
