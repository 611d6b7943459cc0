"""Compiling what generations must match, off the threads that serve everybody."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from branchline.grammar import Grammar
    from branchline.runtime.grammar import CompiledGrammar


class Compiler(Protocol):
    """Makes grammars of sources, for one vocabulary."""

    def compile(self, grammar: Grammar) -> Future[CompiledGrammar]:
        """Returns at once; the future's exception is an InvalidRequest for a bad source."""

    def close(self) -> None:
        """Compile nothing more."""


class LazyCompiler:
    """A compiler that is made, on a thread of its own, when the first grammar comes.

    A runtime that never sees a grammar does without the vocabulary's bytes.
    """

    def __init__(self, make: Callable[[], Compiler]) -> None:
        self._make = make
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="branchline-grammar")
        self._made: Future[Compiler] | None = None

    def compile(self, grammar: Grammar) -> Future[CompiledGrammar]:
        """See `Compiler.compile`. On one thread only."""
        if self._made is None:
            self._made = self._pool.submit(self._make)
        elif self._made.done() and self._made.exception() is None:
            return self._made.result().compile(grammar)
        compiled: Future[CompiledGrammar] = Future()
        self._made.add_done_callback(lambda made: _go_on(made, grammar, compiled))
        return compiled

    def close(self) -> None:
        """See `Compiler.close`."""
        self._pool.shutdown(wait=False)
        if self._made is not None:
            self._made.add_done_callback(_close)


def _go_on(made: Future[Compiler], grammar: Grammar, compiled: Future[CompiledGrammar]) -> None:
    try:
        made.result().compile(grammar).add_done_callback(lambda inner: _pass_on(inner, compiled))
    except Exception as error:  # noqa: BLE001 - whoever waits for the future raises it
        compiled.set_exception(error)


def _pass_on(inner: Future[CompiledGrammar], outer: Future[CompiledGrammar]) -> None:
    error = inner.exception()
    if error is None:
        outer.set_result(inner.result())
    else:
        outer.set_exception(error)


def _close(made: Future[Compiler]) -> None:
    if made.exception() is None:
        made.result().close()
