"""Compiling off the caller's thread: once, remembered, and nobody waits for a bad grammar."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from branchline.errors import InvalidRequest, RequestAborted
from branchline.grammar import Grammar
from branchline.runtime.grammar import compiler as compiler_module
from branchline.runtime.grammar.compiler import GrammarCompiler

from .vocabularies import byte_vocabulary
from .walks import accepts

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

    from branchline.runtime.grammar import CompiledGrammar

VOCABULARY = byte_vocabulary()
WAIT = 30  # seconds, for a machine that is busy


@pytest.fixture
def compiler() -> Iterator[GrammarCompiler]:
    made = GrammarCompiler(VOCABULARY)
    yield made
    made.close()


@dataclass
class Held:
    """A compiler, one of whose threads waits inside a grammar until `go`."""

    compiler: GrammarCompiler
    future: Future[CompiledGrammar]
    go: threading.Event


@pytest.fixture
def held(compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    go = threading.Event()
    slow = Grammar("lark", 'start: "slow"')
    compile_now = compiler._compile

    def compile_when_it_may(grammar: Grammar) -> CompiledGrammar:
        assert grammar is not slow or go.wait(WAIT)
        return compile_now(grammar)

    monkeypatch.setattr(compiler, "_compile", compile_when_it_may)
    yield Held(compiler, compiler.compile(slow), go)
    go.set()


def _chain(length: int) -> str:
    """A schema of references that are followed one inside another."""
    definitions: dict[str, Any] = {f"a{i}": {"$ref": f"#/$defs/a{i + 1}"} for i in range(length)}
    definitions[f"a{length}"] = {"type": "string"}
    return json.dumps({"$ref": "#/$defs/a0", "$defs": definitions})


@pytest.mark.parametrize(
    ("grammar", "text"),
    [
        (Grammar("regex", "[ab]+c"), "abc"),
        (Grammar("json_schema", '{"type": "integer"}'), "15"),
        (Grammar("lark", 'start: "x"'), "x"),
        (Grammar("ebnf", 'root ::= "x" root?'), "xxx"),
        (
            Grammar(
                "structural_tag",
                '{"structures": [{"begin": "<", "schema": {}, "end": ">"}], "triggers": ["<"]}',
            ),
            "a <null>",
        ),
    ],
    ids=lambda value: getattr(value, "kind", value),
)
def test_every_kind(compiler: GrammarCompiler, grammar: Grammar, text: str) -> None:
    compiled = compiler.compile(grammar).result(WAIT)
    assert accepts(compiled, VOCABULARY, VOCABULARY.encode(text))
    assert not accepts(compiled, VOCABULARY, VOCABULARY.encode(text + "<"))


@pytest.mark.parametrize("kind", ["regex", "json_schema", "lark", "ebnf", "structural_tag"])
def test_an_error_names_the_grammar_and_is_not_kept(compiler: GrammarCompiler, kind: str) -> None:
    grammar = Grammar(kind, "(" + "x" * 200)  # type: ignore[arg-type]
    first = compiler.compile(grammar)
    error = first.exception(WAIT)
    assert isinstance(error, InvalidRequest)
    assert str(error).startswith(f"the {kind} '(xxx")
    assert "…'" in str(error)
    assert len(str(error)) < 400
    assert compiler.compile(grammar) is not first


def test_equal_grammars_are_compiled_once(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = threading.Event()
    compiled: list[Grammar] = []

    def compile_slowly(grammar: Grammar) -> object:
        compiled.append(grammar)
        assert go.wait(WAIT)
        return object()

    monkeypatch.setattr(compiler, "_compile", compile_slowly)
    grammars = [Grammar(kind, "x") for kind in ("lark", "ebnf") for _ in range(5)]  # type: ignore[arg-type]
    futures = [compiler.compile(grammar) for grammar in grammars]
    assert not any(future.cancel() for future in futures)
    go.set()
    results = [future.result(WAIT) for future in futures]
    assert len(compiled) == len(set(map(id, results))) == 2
    assert compiler.compile(grammars[0]).result(0) is results[0]


def test_the_least_recently_used_is_forgotten(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler_module, "KEPT", 3)
    grammars = [Grammar("lark", f'start: "{i}"') for i in range(4)]
    futures = [compiler.compile(grammar) for grammar in grammars[:3]]
    assert compiler.compile(grammars[0]) is futures[0]
    compiler.compile(grammars[3])
    assert compiler.compile(grammars[0]) is futures[0]
    assert compiler.compile(grammars[1]) is not futures[1]
    assert futures[1].result(WAIT)


def test_large_sources_leave_sooner(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler_module, "KEPT_CHARS", 100)
    small = Grammar("lark", 'start: "a"')
    future = compiler.compile(small)
    assert compiler.compile(small) is future
    large = Grammar("lark", 'start: "a"' + " " * 100)
    kept = compiler.compile(large)
    assert compiler.compile(large) is kept
    assert compiler.compile(small) is not future


def test_what_would_overflow_the_stack_takes_down_its_own_process_only(
    compiler: GrammarCompiler,
) -> None:
    rules = "".join(f"r{i}: r{i + 1}\n" for i in range(20_000))
    sources = [
        Grammar("json_schema", _chain(20_000)),
        Grammar("lark", f'start: r0\n{rules}r20000: "b"'),
    ]
    good = compiler.compile(Grammar("json_schema", _chain(100)))
    for grammar in sources:
        with pytest.raises(InvalidRequest, match="nested too deeply"):
            compiler.compile(grammar).result(WAIT)
    assert accepts(good.result(WAIT), VOCABULARY, VOCABULARY.encode('"x"'))


def test_a_slow_grammar_holds_up_no_other(held: Held) -> None:
    other = held.compiler.compile(Grammar("lark", 'start: "b"'))
    assert other.result(WAIT)
    assert not held.future.done()
    held.go.set()
    assert held.future.result(WAIT)


def test_nothing_is_compiled_after_the_end() -> None:
    compiler = GrammarCompiler(VOCABULARY)
    compiler.close()
    with pytest.raises(RequestAborted):
        compiler.compile(Grammar("lark", 'start: "a"')).result(WAIT)


def test_nobody_waits_for_ever_at_the_end(held: Held) -> None:
    others = [held.compiler.compile(Grammar("lark", f'start: "{i}"')) for i in range(20)]
    held.compiler.close()
    held.go.set()
    for future in (held.future, *others):
        assert isinstance(future.exception(WAIT), RequestAborted | None)
    assert isinstance(held.future.exception(), RequestAborted)
