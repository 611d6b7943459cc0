"""`branchline info`: what a runtime is doing."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.table import Table

from branchline import eventloop
from branchline.runtime.cli.connection import add_address_flag, attach

if TYPE_CHECKING:
    import argparse

    from branchline.runtime_info import RuntimeInfo

WATCH_SECONDS = 1.0


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("info", help="what a runtime is doing")
    add_address_flag(parser)
    parser.add_argument("--watch", action="store_true", help="refresh every second until Ctrl-C")
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Print the runtime's counters, once or until Ctrl-C."""
    console = Console()
    with attach(arguments.address) as runtime:
        if not arguments.watch:
            console.print(_table(eventloop.run(runtime.info())))
            return 0
        with Live(console=console, auto_refresh=False) as live:
            while True:
                live.update(_table(eventloop.run(runtime.info())), refresh=True)
                time.sleep(WATCH_SECONDS)


def _table(info: RuntimeInfo) -> Table:
    """The counters as two columns, in the order in which one asks for them."""
    hits = info.cached_prompt_tokens / info.prompt_tokens if info.prompt_tokens else 0.0
    table = Table.grid(padding=(0, 2))
    table.add_row("model", f"{info.model}, up {info.uptime:,.0f} s")
    table.add_row("requests", f"{info.running:,} running, {info.waiting:,} waiting")
    table.add_row(
        "since start",
        f"{info.requests_finished:,} finished, {info.requests_aborted:,} aborted, "
        f"{info.retractions:,} retractions",
    )
    table.add_row(
        "pages",
        f"{info.pages_free:,} free, {info.pages_cached:,} cached "
        f"({info.pages_protected:,} in use), {info.pages_private:,} private, "
        f"of {info.pages_total:,}",
    )
    table.add_row(
        "hit rate",
        f"{hits:.1%} ({info.cached_prompt_tokens:,} of {info.prompt_tokens:,} prompt tokens)",
    )
    table.add_row(
        "generated",
        f"{info.generated_tokens:,} tokens, {info.tokens_per_second:,.1f} tokens/s now",
    )
    return table
