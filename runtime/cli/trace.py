"""`branchline trace`: runs a program and makes a page of what it asked, shared and waited for."""

from __future__ import annotations

import argparse
import json
import sys
from concurrent.futures import wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from branchline.collecting import collected
from branchline.runtime.cli import connection, run
from branchline.trace import trace_of
from branchline.trace_page import page

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_WAIT = 5.0  # seconds for what still goes on after the program's end: it fails, or is left out


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "trace",
        help="run a program and make a page of what it did",
        description="Run a Python program as `branchline run` does, then write one HTML page: "
        "every run of a program with its forks, what they shared, and where the time went.",
    )
    connection.add_backend_flags(parser)
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="the page (default: the program's name with .trace.html, in this folder)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the traces as data, too")
    parser.add_argument("program", metavar="PROGRAM.py")
    parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="...", help="the program's own arguments"
    )
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Run the program, write the page however it ends, and return its exit status."""
    program = Path(arguments.program)
    output = arguments.output or Path(f"{program.stem}.trace.html")
    with collected() as runs:
        try:
            return run.execute(arguments)
        finally:
            if program.is_file():
                wait([root.settled(outside=True) for root in runs], MAX_WAIT)
                _write([*map(trace_of, runs)], output, arguments.json, program.name)


def _write(traces: Sequence[dict[str, Any]], output: Path, data: Path | None, title: str) -> None:
    # A model may have written half a surrogate pair, which no file can hold.
    output.write_text(page(traces, title), encoding="utf-8", errors="replace")
    if data is not None:
        data.write_text(json.dumps(traces, indent=1), encoding="utf-8")
    number = f"{len(traces)} run" + ("" if len(traces) == 1 else "s")
    print(f"branchline: {number} traced in {output}", file=sys.stderr)
