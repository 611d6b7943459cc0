"""The command line: which command was named, and how its errors end."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from branchline.errors import BranchlineError
from branchline.runtime.cli import chat, doctor, info, pull, run, serve, top, trace

if TYPE_CHECKING:
    from collections.abc import Sequence

INTERRUPTED = 130  # what a shell expects of a command that Ctrl-C ended


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status. `argv` is what follows the command's own name."""
    arguments = _parser().parse_args(argv)
    try:
        status: int = arguments.execute(arguments)
    except BranchlineError as error:
        print(f"branchline {arguments.command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="branchline",
        description="A runtime for programs that call a language model many times.",
        epilog="`branchline COMMAND --help` has the rest.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in (pull, serve, run, trace, chat, info, top, doctor):
        command.add(commands)
    return parser
