"""`branchline top`: the tree, the requests and the speed of a runtime, live in a terminal."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.text import Text

from branchline import eventloop
from branchline.errors import RuntimeUnavailable
from branchline.runtime.cli.connection import attach
from branchline.runtime.cli.rates import Past
from branchline.runtime.cli.screen import screen

if TYPE_CHECKING:
    import argparse

    from rich.console import RenderableType

    from branchline.client import Client

PERIOD = 1.0  # seconds between two looks
NODES = 500  # of the tree, the largest: more than a terminal has lines
ROWS_ONCE = 40  # of the tree and the requests together, where no terminal's height says
ROWS_ABOVE = 14  # of the screen that are neither


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "top",
        help="the tree and the requests of a runtime, live",
        description="Watch a runtime until Ctrl-C: its speed, its tree, its requests.",
    )
    parser.add_argument(
        "address",
        nargs="?",
        metavar="ADDRESS",
        help="ZeroMQ address of a runtime that is there (default: the one of `branchline serve`)",
    )
    parser.add_argument("--once", action="store_true", help="print one picture and end")
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Draw the runtime, once or until Ctrl-C; what is not a terminal gets it once."""
    console = Console()
    past = Past()
    with attach(arguments.address) as runtime:
        if arguments.once or not console.is_terminal:
            console.print(_look(runtime, past, ROWS_ONCE))
            return 0
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                live.update(_look_again(runtime, past, console.height - ROWS_ABOVE), refresh=True)
                time.sleep(PERIOD)


def _look(runtime: Client, past: Past, rows: int) -> RenderableType:
    seen = eventloop.run(runtime.inspect(NODES))
    return screen(seen, past.take(seen.info), past, max(rows, 2))


def _look_again(runtime: Client, past: Past, rows: int) -> RenderableType:
    """A look at a runtime that may be away for a while: the client finds it again."""
    try:
        return _look(runtime, past, rows)
    except RuntimeUnavailable as error:
        return Text(f"{error}\nLooking for it; Ctrl-C ends this.")
