"""A pattern that takes too much fails alone; whoever comes next is served."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from branchline.errors import InvalidRequest
from branchline.runtime.grammar.automaton import determinize
from branchline.runtime.grammar.byte_automaton import ByteAutomaton
from branchline.runtime.grammar.pattern import parse
from branchline.runtime.grammar.pattern_process import PatternProcesses
from branchline.runtime.grammar.regex import RegexCompiler

from .vocabularies import byte_vocabulary
from .walks import allowed

SLOW = "(?:a?){1300}"  # a million steps


@pytest.fixture
def processes():
    made = PatternProcesses()
    yield made
    made.close()


def test_an_automaton_comes_back_as_it_would_be_built_here(processes) -> None:
    for source in (r"\d{2,3}(?:a|é)*", "(?i)straße"):
        there, here = processes.build(source), ByteAutomaton(determinize(parse(source)))
        for name in ("table", "accepting_states", "starts", "classes", "next_prefix", "_alive"):
            assert np.array_equal(getattr(there, name), getattr(here, name))


def test_refusals_come_back_and_the_process_stays(processes) -> None:
    for _ in range(2):
        with pytest.raises(ValueError, match="look-ahead"):
            processes.build("(?=a)")
        with pytest.raises(ValueError, match="90000 positions"):
            processes.build("a" * 90_000)
        assert len(processes.build("ab").table) == 4
    assert len(processes._idle) == 1


def test_a_pattern_that_takes_too_long_is_given_up() -> None:
    processes = PatternProcesses(seconds=0.05)
    with pytest.raises(ValueError, match=r"more than 0\.05 seconds"):
        processes.build(SLOW)
    assert processes._idle == []
    processes.close()


def test_others_are_served_while_one_takes_long(processes) -> None:
    with ThreadPoolExecutor(4) as pool:
        slow = pool.submit(processes.build, SLOW)
        quick = [pool.submit(processes.build, f"a{{{n}}}") for n in range(1, 20)]
        assert [len(one.result().table) for one in quick] == [n + 2 for n in range(1, 20)]
        with pytest.raises(ValueError, match="steps"):
            slow.result()


def test_a_process_that_died_is_replaced(processes) -> None:
    processes.build("a")
    processes._idle[0].kill()
    processes._idle[0].wait()
    assert len(processes.build("b").table) == 3


def test_closing_fails_what_is_being_built() -> None:
    processes = PatternProcesses()
    processes.build("a")
    failed = []

    def build() -> None:
        while not failed or "steps" in failed[-1]:
            with pytest.raises(ValueError) as refused:
                processes.build(SLOW)
            failed.append(str(refused.value))

    thread = threading.Thread(target=build)
    thread.start()
    processes.close()
    thread.join(20)
    assert failed[-1] == "the runtime is closing"
    with pytest.raises(ValueError, match="closing"):
        processes.build("a")


def test_a_compiler_refuses_a_request_and_goes_on() -> None:
    vocabulary = byte_vocabulary()
    compiler = RegexCompiler(vocabulary)
    with pytest.raises(InvalidRequest, match="back-reference"):
        compiler.compile(r"(a)\1")
    matcher = compiler.compile("[ab]x").start()
    assert allowed(matcher, vocabulary) == [97, 98]
    with pytest.raises(AssertionError, match="token 99 was not allowed"):
        matcher.advance([99])
    compiler.close()


def test_a_thousand_choices() -> None:
    """What `select(method="decode")` makes of its choices."""
    vocabulary = byte_vocabulary([b"choice "])
    compiler = RegexCompiler(vocabulary)
    matcher = compiler.compile("|".join(f"choice {n * n}" for n in range(1000))).start()
    assert matcher.forced() == [257]
    matcher.advance([257])
    matcher.advance(list(b"99800"))  # 999 * 999 is 998001
    assert allowed(matcher, vocabulary) == [ord("1")]
    assert matcher.forced() == [ord("1")]
    matcher.advance([ord("1")])
    assert matcher.complete
    compiler.close()
