"""Grammars on their way to the loop: compiled elsewhere, aborted meanwhile, shared by n choices."""

from __future__ import annotations

import threading
from concurrent.futures import Future

import pytest

from branchline.errors import InvalidRequest, RequestAborted
from branchline.grammar import Grammar
from branchline.protocol import Abort, Bye
from branchline.runtime.compiling import LazyCompiler

from .grammars import Place, TokenGrammar, constrained
from .stub import EOS
from .whole import A, B, Whole, ask, ids_of, right

REGEX = Grammar("regex", "the (cat|dog) sat")
WORDS = TokenGrammar.text(*ids_of("The"), set(ids_of("ABCDEFG")), *ids_of("sat"))


class HeldCompiler:
    """Compiles when it is told to, on another thread."""

    def __init__(self) -> None:
        self.asked: list[tuple[Grammar, Future]] = []
        self.closed = False

    def compile(self, grammar: Grammar) -> Future:
        self.asked.append((grammar, Future()))
        return self.asked[-1][1]

    def close(self) -> None:
        self.closed = True

    def give(self, result, index: int = -1) -> None:
        future = self.asked[index][1]
        give = future.set_exception if isinstance(result, Exception) else future.set_result
        thread = threading.Thread(target=give, args=(result,))
        thread.start()
        thread.join()


def whole(**settings) -> tuple[Whole, HeldCompiler]:
    compiler = HeldCompiler()
    return Whole(compiler=compiler, **settings), compiler


def form(rid: str = "r", **params):
    return ask(rid, "ABC", grammar=REGEX, max_tokens=20, **params)


def test_a_request_waits_for_its_grammar_and_nobody_for_it():
    desk, compiler = whole()
    desk.tell(form())
    desk.tell(ask("other", "hello"))
    desk.run()
    assert desk.updates("r") == []
    assert desk.ids("other") == right(ids_of("hello"), 8)
    assert [grammar for grammar, _ in compiler.asked] == [REGEX]
    compiler.give(WORDS)
    desk.run()
    assert desk.ids() == constrained(WORDS, ids_of("ABC"), max_tokens=20)
    assert desk.text().startswith("The")
    usage = desk.updates()[-1].usage
    assert usage.forced_tokens == len(desk.ids()) - 1


def test_a_grammar_that_is_there_already_is_used_at_once():
    desk, compiler = whole()
    compiler.compile = lambda _: done(WORDS)
    desk.tell(form())
    desk.run()
    assert desk.ids() == constrained(WORDS, ids_of("ABC"), max_tokens=20)


def done(result) -> Future:
    future: Future = Future()
    future.set_result(result)
    return future


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidRequest("the regex '(': missing )"), "invalid"),
        (RequestAborted("the runtime is closing"), "aborted"),
        (KeyError("a bug"), "internal"),
    ],
)
def test_a_grammar_that_cannot_be_had_is_a_failure_of_its_request(error, code, caplog):
    desk, compiler = whole()
    desk.tell(form())
    desk.tell(ask("other", "hello"))
    compiler.give(error)
    desk.run()
    (failure,) = desk.failures()
    assert failure.code == code
    assert str(error) in failure.message
    assert desk.ids("other") == right(ids_of("hello"), 8)
    assert ("met a bug" in caplog.text) == (code == "internal")
    desk.tell(ask("r", "hello"))  # the rid is free
    desk.run()
    assert desk.ids("r") == right(ids_of("hello"), 8)


@pytest.mark.parametrize("result", [WORDS, InvalidRequest("bad")])
@pytest.mark.parametrize("n", [1, 3])
def test_abort_while_compiling(n, result):
    desk, compiler = whole()
    desk.tell(form(n=n))
    desk.tell(Abort("r"))
    desk.tell(Abort("r"))
    (failure,) = desk.failures()
    assert failure.code == "aborted"
    desk.tell(ask("r", "hello"))
    compiler.give(result)
    desk.run()
    assert len(desk.failures()) == 1
    assert desk.ids() == right(ids_of("hello"), 8), "the rid belongs to another request now"


def test_abort_just_after_compiling():
    desk, compiler = whole()
    desk.tell(form())
    compiler.give(WORDS)
    desk.tell(Abort("r"))
    desk.run()
    (failure,) = desk.failures()
    assert failure.code == "aborted"


def test_a_client_that_leaves_while_compiling_hears_nothing():
    desk, compiler = whole()
    desk.tell(form(), A)
    desk.tell(form(), B)
    desk.tell(Bye(), A)
    compiler.give(WORDS, 0)
    compiler.give(WORDS, 1)
    desk.run()
    assert desk.updates(client=A) == desk.failures(client=A) == []
    assert desk.ids(client=B) == constrained(WORDS, ids_of("ABC"), max_tokens=20)


def test_a_client_that_does_not_keep_up_is_told_of_what_compiles():
    desk, compiler = whole()
    desk.tell(form())
    assert desk.service.overload(A, "too slow") == 1
    compiler.give(WORDS)
    desk.run()
    assert [failure.code for failure in desk.failures()] == ["overloaded"]
    assert desk.updates() == []


def test_what_compiles_counts_as_waiting_until_it_is_gone():
    desk, compiler = whole(max_running=2, max_waiting=2)
    for rid in "abcd":
        desk.tell(form(rid))
    desk.tell(ask("one more", "hello"))
    assert [failure.code for failure in desk.failures("one more")] == ["overloaded"]
    desk.tell(Abort("a"))
    compiler.give(InvalidRequest("bad"), 1)
    for rid in ("e", "f"):
        desk.tell(ask(rid, "hello"))
        assert desk.failures(rid) == []
    compiler.give(WORDS, 2)
    compiler.give(WORDS, 3)
    desk.run()
    desk.tell(ask("g", "hello", n=4))
    assert desk.failures("g") == [], "nothing is counted that is not there"
    desk.run()


def test_n_choices_each_have_their_own_place_in_the_grammar():
    desk, compiler = whole()
    grammar = TokenGrammar(
        [
            Place({ids_of("A")[0]: 1}, canonical=ids_of("A")[0]),
            Place(dict.fromkeys(range(2, 40), 1) | {50: 2}, accepting=True),
            Place(accepting=True),
        ]
    )
    desk.tell(form(n=6, temperature=1.0, seed=3))
    compiler.give(grammar)
    desk.run()
    outputs = [
        tuple(token for update in desk.updates() if update.index == index for token in update.ids)
        for index in range(6)
    ]
    assert len(set(outputs)) > 1
    assert grammar.matchers == 1, "the others are copies"
    for output in outputs:
        assert output[0] == ids_of("A")[0]
        assert len(output) == 20 or output[-1] == EOS
        assert {*output[1:]} <= {*range(2, 40), 50, EOS}
        assert 50 not in output or output[output.index(50) + 1 :] in [(EOS,), ()]


def test_without_a_compiler_a_grammar_is_refused_by_its_kind():
    desk = Whole()
    desk.tell(form())
    (failure,) = desk.failures()
    assert failure.code == "invalid"
    assert "no regex" in failure.message


def test_a_closing_service_closes_its_compiler():
    desk, compiler = whole()
    desk.service.close()
    assert compiler.closed


# -------------------------------------------------------------------------------- made when needed


def test_a_lazy_compiler_is_made_once_and_off_the_thread_that_asks():
    made, may = [], threading.Event()

    def make() -> HeldCompiler:
        may.wait()
        made.append(threading.current_thread())
        compiler = HeldCompiler()
        compiler.compile = lambda grammar: done(grammar.source)
        return compiler

    lazy = LazyCompiler(make)
    futures = [lazy.compile(Grammar("regex", str(i))) for i in range(5)]
    assert not any(future.done() for future in futures)
    may.set()
    assert [future.result(5) for future in futures] == list("01234")
    assert lazy.compile(Grammar("regex", "later")).result(5) == "later"
    (thread,) = made
    assert thread is not threading.current_thread()
    lazy.close()


def test_a_vocabulary_that_no_grammar_can_use_is_an_error_for_whoever_asks():
    def make() -> HeldCompiler:
        raise InvalidRequest("unknown tokens")

    lazy = LazyCompiler(make)
    for _ in range(2):
        with pytest.raises(InvalidRequest, match="unknown tokens"):
            lazy.compile(REGEX).result(5)
    lazy.close()


def test_a_lazy_compiler_closes_what_it_made():
    compiler = HeldCompiler()
    lazy = LazyCompiler(lambda: compiler)
    lazy.compile(REGEX)
    lazy.close()
    lazy._pool.shutdown(wait=True)
    assert compiler.closed
    assert LazyCompiler(lambda: compiler).close() is None
