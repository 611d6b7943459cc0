"""Grammars compiled off the engine's threads: each once, and kept for whoever asks next."""

from __future__ import annotations

import threading
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from branchline.errors import InvalidRequest, RequestAborted
from branchline.runtime.grammar.guidance import Guidance
from branchline.runtime.grammar.regex import RegexCompiler

if TYPE_CHECKING:
    from branchline.grammar import Grammar
    from branchline.runtime.grammar.matcher import CompiledGrammar
    from branchline.runtime.grammar.vocabulary import Vocabulary

# What is kept: the most recently used grammars, by their number and their sources' characters.
KEPT = 256
KEPT_CHARS = 4 * 1024 * 1024

_THREADS = 4  # a slow grammar holds one of them; none holds the interpreter's lock for long
_SHOWN = 60  # characters of a source in an error


class GrammarCompiler:
    """Compiles grammars for one vocabulary. Its methods may be called from any thread."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._guidance = Guidance(vocabulary)
        self._regex = RegexCompiler(vocabulary)
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="grammar")
        self._lock = threading.Lock()
        self._known: OrderedDict[Grammar, Future[CompiledGrammar]] = OrderedDict()
        self._closed = False

    def compile(self, grammar: Grammar) -> Future[CompiledGrammar]:
        """The grammar, compiled now or before.

        All who ask for equal grammars get the same future, so it cannot be cancelled. What failed
        is not kept: the next to ask starts again.

        Returns:
            A future; its exception is an InvalidRequest that names the grammar and the rule it
            breaks, or a RequestAborted after `close`. Done callbacks run on a thread of the
            compiler's, or in `add_done_callback` itself.
        """
        with self._lock:
            future = self._known.get(grammar)
            if future is None:
                future = Future()
                future.set_running_or_notify_cancel()
                if self._closed:
                    future.set_exception(RequestAborted("the runtime is closing"))
                    return future
                self._known[grammar] = future
                self._pool.submit(self._settle, grammar, future)
            self._known.move_to_end(grammar)
            self._trim()
        return future

    def close(self) -> None:
        """Compile nothing more; what is still waiting fails. Does not wait for what runs."""
        with self._lock:
            self._closed = True
            self._known.clear()
        self._pool.shutdown(wait=False)
        self._regex.close()

    def _settle(self, grammar: Grammar, future: Future[CompiledGrammar]) -> None:
        try:
            compiled = self._compile(grammar)
        except Exception as error:  # noqa: BLE001 - whoever waits for the future raises it
            with self._lock:
                if self._known.get(grammar) is future:
                    del self._known[grammar]
            future.set_exception(error)
        else:
            future.set_result(compiled)

    def _compile(self, grammar: Grammar) -> CompiledGrammar:
        if self._closed:
            raise RequestAborted("the runtime is closing")
        try:
            if grammar.kind == "regex":
                return self._regex.compile(grammar.source)
            return self._guidance.compile(grammar)
        except InvalidRequest as error:
            raise InvalidRequest(f"the {grammar.kind} {_shown(grammar.source)}: {error}") from error

    def _trim(self) -> None:
        """Forget the least recently used, but never the last one asked for."""
        chars = sum(len(grammar.source) for grammar in self._known)
        while len(self._known) > 1 and (len(self._known) > KEPT or chars > KEPT_CHARS):
            grammar, _ = self._known.popitem(last=False)
            chars -= len(grammar.source)


def _shown(source: str) -> str:
    return repr(source if len(source) <= _SHOWN else source[: _SHOWN - 1] + "…")
