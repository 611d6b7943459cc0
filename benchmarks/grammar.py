"""Time the masks of grammars, as a request computes them, over a real tokenizer's vocabulary.

usage: python benchmarks/grammar.py [MODEL]

Each text is an output: its tokens are taken one by one, or as many at once as are forced. A row is
one grammar: microseconds of a mask (mean, 99th percentile, largest), of taking a token and of
asking what is forced, milliseconds of compiling. Every repetition is a request of its own and
begins anew. Regular expressions are compiled by both, ours and llguidance; `differ` counts the
masks that are not the same where nothing is forced. Times are processor time of the thread, so
that a busy machine does not show.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from branchline.grammar import Grammar
from branchline.runtime.grammar.compiler import GrammarCompiler
from branchline.runtime.grammar.vocabulary import Vocabulary
from branchline.runtime.models.gguf_file import GGUFFile
from branchline.runtime.models.source import resolve
from branchline.runtime.text import Tokenizer

if TYPE_CHECKING:
    from branchline.runtime.grammar import CompiledGrammar, Matcher

REPEATS = 30
EMAIL = {"type": "string", "format": "email"}
NODE = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "children": {"type": "array", "items": {"$ref": "#/$defs/node"}},
    },
    "required": ["name", "children"],
    "additionalProperties": False,
}


def required(properties: dict[str, object]) -> dict[str, object]:
    """An object that has just these properties."""
    return {
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    }


TEXT = {"type": "string"}
LIMITED = {"type": "string", "maxLength": 200}
MONEY = {"type": "number", "minimum": 0}

# name: a schema and an output of it
SCHEMAS: dict[str, tuple[object, object]] = {
    "person": (
        required({"name": TEXT, "age": {"type": "integer", "minimum": 0}, "email": EMAIL}),
        {"name": "Ada Lovelace", "age": 36, "email": "ada@example.org"},
    ),
    "optional": (
        {"type": "object", "properties": {f"field_{i}": TEXT for i in range(20)}},
        {"field_3": "some words", "field_12": "other words", "more": [1, 2, {"x": None}]},
    ),
    "labels": (
        required({"label": {"enum": [f"category {i}" for i in range(200)]}, "sure": MONEY}),
        {"label": "category 117", "sure": 0.93},
    ),
    "invoice": (
        required(
            {
                "number": {"type": "string", "pattern": "^INV-[0-9]{6}$"},
                "date": {"type": "string", "format": "date"},
                "lines": {
                    "type": "array",
                    "items": required(
                        {"item": LIMITED, "count": {"type": "integer"}, "price": MONEY}
                    ),
                },
                "currency": {"enum": ["EUR", "USD", "GBP", "JPY"]},
            }
        ),
        {
            "number": "INV-004711",
            "date": "2024-02-29",
            "lines": [
                {"item": "A cable of three metres", "count": 2, "price": 14.5},
                {"item": "Installation", "count": 1, "price": 99},
            ],
            "currency": "EUR",
        },
    ),
    "tree": (
        {"$ref": "#/$defs/node", "$defs": {"node": NODE}},
        {"name": "root", "children": [{"name": "left leaf", "children": []}]},
    ),
    "call": (
        {
            "anyOf": [
                required({"tool": {"const": "search"}, "query": TEXT}),
                required({"tool": {"const": "weather"}, "city": TEXT, "days": {"type": "integer"}}),
                required({"tool": {"const": "mail"}, "to": EMAIL, "body": TEXT}),
            ]
        },
        {"tool": "mail", "to": "bob@example.com", "body": "Dear Bob,\n\nthe cable has arrived. 👋"},
    ),
    "formats": (
        required(
            {
                "id": {"type": "string", "format": "uuid"},
                "at": {"type": "string", "format": "date-time"},
                "from": {"type": "string", "format": "ipv4"},
                "link": {"type": "string", "format": "uri"},
            }
        ),
        {
            "id": "2eb8aa08-aa98-11ea-b4aa-73b441d16380",
            "at": "2024-05-06T07:08:09Z",
            "from": "192.168.0.17",
            "link": "https://example.org/a/b?c=d#e",
        },
    ),
    "anything": ({}, {"a": [1, -2.5e3, True, None, 'text with "quotes" and é'], "b": {}}),
}

# name: a pattern and a text that it matches
PATTERNS = {
    "date": (r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])", "2024-02-28"),
    "ipv4": (
        r"((25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])\.){3}(25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])",
        "192.168.10.254",
    ),
    "email": (r"[a-z0-9._%+-]+@[a-z0-9.-]+\.[a-z]{2,6}", "ada.lovelace@mail.example.org"),
    "number": (r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?", "-12345.678e10"),
    "sentence": (r"[A-Z][^.!?]*[.!?]", "The quick brown fox jumps over the lazy dog."),
    "answer": (r"(Yes|No|Maybe), because [^\n]{5,80}\.", "Maybe, because it rains in the night."),
    "chat": (r"(User: [^\n]+\nBot: [^\n]+\n)+", "User: hello there\nBot: good morning, Ada\n"),
    "hex": (r"0x[0-9a-fA-F]{1,16}", "0xDEADbeef0042"),
}


@dataclass
class Times:
    """Microseconds of each call."""

    start: list[float] = field(default_factory=list)
    mask: list[float] = field(default_factory=list)
    advance: list[float] = field(default_factory=list)
    forced: list[float] = field(default_factory=list)
    tokens: int = 0
    jumped: int = 0

    def summary(self) -> dict[str, object]:
        """The columns of a row."""
        mask = np.asarray(self.mask)
        return {
            "tokens": self.tokens // REPEATS,
            "forced": self.jumped // REPEATS,
            "mask_us": round(mask.mean(), 1),
            "mask_p99_us": round(float(np.percentile(mask, 99)), 1),
            "mask_max_us": round(mask.max(), 1),
            "advance_us": round(float(np.mean(self.advance)), 1),
            "forced_us": round(float(np.mean(self.forced)), 1),
            "start_us": round(float(np.mean(self.start)), 1),
        }


class Clock:
    """Adds the time of a block to a list."""

    def __init__(self, to: list[float]) -> None:
        self._to = to

    def __enter__(self) -> None:
        self._began = time.thread_time_ns()

    def __exit__(self, *_: object) -> None:
        self._to.append((time.thread_time_ns() - self._began) / 1e3)


def walk(grammar: CompiledGrammar, ids: list[int], size: int, times: Times) -> list[np.ndarray]:
    """One request: the masks where something was chosen."""
    with Clock(times.start):
        matcher = grammar.start()
    masks = []
    at = 0
    while True:
        at += jump(matcher, ids[at:], times)
        mask = np.empty(-(-size // 32), np.int32)
        with Clock(times.mask):
            matcher.fill_mask(mask)
        masks.append(mask)
        if at == len(ids):
            assert matcher.accepting, "the text is not one of the grammar's"
            times.tokens += len(ids)
            return masks
        token = ids[at]
        assert mask[token // 32] >> token % 32 & 1, f"token {token}, the {at}th, is not allowed"
        with Clock(times.advance):
            matcher.advance([token])
        at += 1


def jump(matcher: Matcher, ids: list[int], times: Times) -> int:
    """Take what is forced; how many tokens of the text that is."""
    with Clock(times.forced):
        forced = matcher.forced()
    if forced != ids[: len(forced)]:
        return 0  # another way to write the same text
    if forced:
        matcher.advance(forced)
    times.jumped += len(forced)
    return len(forced)


def measure(
    compiler: GrammarCompiler, grammar: Grammar, ids: list[int], size: int, total: Times
) -> tuple[dict[str, object], list[np.ndarray]]:
    began = time.perf_counter()
    compiled = compiler.compile(grammar).result()
    compile_ms = 1e3 * (time.perf_counter() - began)
    times = Times()
    for _ in range(REPEATS):
        masks = walk(compiled, ids, size, times)
    for name in ("start", "mask", "advance", "forced"):
        getattr(total, name).extend(getattr(times, name))
    total.tokens += times.tokens
    total.jumped += times.jumped
    return {"compile_ms": round(compile_ms, 1)} | times.summary(), masks


def schemas(compiler: GrammarCompiler, vocabulary: Vocabulary) -> None:
    total = Times()
    for name, (schema, value) in SCHEMAS.items():
        ids = vocabulary.encode(json.dumps(value, ensure_ascii=False))
        grammar = Grammar("json_schema", json.dumps(schema))
        row, _ = measure(compiler, grammar, ids, vocabulary.size, total)
        print(json.dumps({"schema": name} | row), flush=True)
    print(json.dumps({"schema": "all"} | total.summary()), flush=True)


def patterns(compiler: GrammarCompiler, vocabulary: Vocabulary) -> None:
    totals = {"ours": Times(), "llguidance": Times()}
    for name, (pattern, text) in PATTERNS.items():
        ids = vocabulary.encode(text)
        masks = {}
        for by, total in totals.items():
            theirs = Grammar("lark", f"start: /{pattern}/")
            grammar = Grammar("regex", pattern) if by == "ours" else theirs
            row, masks[by] = measure(compiler, grammar, ids, vocabulary.size, total)
            print(json.dumps({"pattern": name, "by": by} | row), flush=True)
        pairs = list(zip(*masks.values(), strict=False))
        same = sum(bool(np.array_equal(one, other)) for one, other in pairs)
        print(json.dumps({"pattern": name, "masks": len(pairs), "differ": len(pairs) - same}))
    for by, total in totals.items():
        print(json.dumps({"pattern": "all", "by": by} | total.summary()), flush=True)


def main() -> None:
    model = sys.argv[1] if len(sys.argv) > 1 else "smollm2"
    vocabulary = Vocabulary.of(Tokenizer.from_gguf(GGUFFile(resolve(model))))
    compiler = GrammarCompiler(vocabulary)
    compiler.compile(Grammar("json_schema", "{}")).result()  # llguidance reads the vocabulary once
    schemas(compiler, vocabulary)
    patterns(compiler, vocabulary)
    compiler.close()
    print(json.dumps({"vocabulary": vocabulary.size, "load": round(os.getloadavg()[0], 1)}))


if __name__ == "__main__":
    main()
