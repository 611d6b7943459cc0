"""`branchline chat`: a conversation on the terminal."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

from branchline import assistant, function, gen, user
from branchline.runtime.cli import connection

if TYPE_CHECKING:
    import argparse

    from branchline import ProgramState

PROMPT = "you: "


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "chat",
        help="talk to the model",
        description="Talk to the model until Ctrl-D. Every turn continues the same state, so only "
        "what is new is computed.",
    )
    parser.add_argument("--system", metavar="TEXT", help="a system turn to start with")
    parser.add_argument("--max-tokens", type=int, default=512, metavar="N", help="of one answer")
    parser.add_argument(
        "--temperature", type=float, default=0.7, metavar="X", help="0 takes the likeliest token"
    )
    connection.add_backend_flags(parser)
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Answer line after line; the answers stream."""
    with connection.backend(arguments) as backend:
        state = _start.run(
            arguments.system,
            max_new_tokens=arguments.max_tokens,
            temperature=arguments.temperature,
            stream=True,
            backend=backend,
        )
        state.sync()
        with contextlib.suppress(EOFError):
            _converse(state)
    print()
    return 0


@function
def _start(s: ProgramState, system: str | None) -> None:
    if system is not None:
        s.system(system)


def _converse(state: ProgramState) -> None:
    turn = 0
    while True:
        text = input(PROMPT)
        if not text.strip():
            continue
        turn += 1
        state += user(text)
        state += assistant(gen(f"answer {turn}"))
        for delta in state.text_iter(f"answer {turn}"):
            print(delta, end="", flush=True)
        sys.stdout.write("\n")
