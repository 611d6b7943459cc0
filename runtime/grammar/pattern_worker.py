"""Patterns in, automata out, over the standard streams: the other side of `pattern_process`."""

from __future__ import annotations

import pickle
import resource
import sys
from contextlib import suppress

from branchline.runtime.grammar.automaton import determinize
from branchline.runtime.grammar.byte_automaton import ByteAutomaton
from branchline.runtime.grammar.pattern import parse

MEMORY = 2 * 1024**3  # bytes of addresses


def main() -> None:
    """Say that it has started, then serve until the standard input ends."""
    with suppress(ValueError, OSError):  # not every system has this limit; the steps have theirs
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    requests, replies = sys.stdin.buffer, sys.stdout.buffer
    reply: ByteAutomaton | ValueError | None = None
    while True:
        pickle.dump(reply, replies)
        replies.flush()
        try:
            source = pickle.load(requests)
        except EOFError:
            return
        try:
            reply = ByteAutomaton(determinize(parse(source)))
        except ValueError as error:
            reply = error
        except MemoryError:
            reply = ValueError("its automaton takes too much memory")


if __name__ == "__main__":
    main()
