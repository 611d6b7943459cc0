"""What the gateway costs: the same work through the language and over HTTP, on one runtime.

usage: python benchmarks/over_http.py [WORKLOAD] [--rounds N] [--singles N] [--json FILE]
                                      [any setting of `branchline serve`]

In each round the workload runs once each way, by turns this or that first, with an empty cache.
Then single requests with a cached prompt, again in turn: what they take until their first token is
what the gateway adds to one that waits for nothing. Client, gateway and runtime share the cores.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from measure import Result, Stopwatch, Timed, median, percentile
from peers.client_side import NAMES, workload
from peers.completions import Completions
from peers.engines import branchline
from peers.server import Server
from report import machine, number, table, write_json
from serve import measure
from workloads import GREEDY, complete, questions

import branchline as bl
from branchline import eventloop
from branchline.launcher import as_flag
from branchline.runtime.cli.flags import add_config_flags, given_settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from branchline.client import Client

WAYS = ("language", "HTTP")
# Of a single request: a first token without text, as an end is, would have HTTP wait for the next.
TOKENS = 1


@dataclass(frozen=True, slots=True)
class Ways:
    """One runtime, with its two entrances."""

    client: Client
    port: int

    def run(self, name: str, *, http_first: bool = False) -> tuple[Result, Result]:
        """A workload through the language and over HTTP."""
        over_http = self._over_http(name) if http_first else None
        spoken = measure(name, self.client, warm=False)
        return spoken, over_http or self._over_http(name)

    def _over_http(self, name: str) -> Result:
        eventloop.run(self.client.flush())
        completions = Completions(self.port)
        watch = Stopwatch()
        asyncio.run(workload(name)(completions))
        return watch.result(name, completions.timings)

    def singles(self, count: int) -> tuple[list[float], list[float]]:
        """Seconds to the first token, of requests that find their prompt cached."""
        prompt = questions()[0][0]
        timed, completions = Timed(self.client), Completions(self.port)
        with asyncio.Runner() as runner:  # one loop for all of them, as the language's client has
            for _ in range(count):
                complete.run(prompt, TOKENS, backend=timed, **GREEDY).sync()
                runner.run(completions.complete(prompt, TOKENS))
        return timed.timings.first_token[1:], completions.timings.first_token[1:]


@contextmanager
def served(settings: dict[str, object]) -> Iterator[Ways]:
    """`branchline serve --http`, and a client of its runtime."""
    flags = [as_flag(name, value) for name, value in settings.items()]
    setup = branchline(*flags)
    address = setup.command[setup.command.index("--address") + 1]
    with tempfile.TemporaryDirectory() as folder:
        server = Server(setup, Path(folder) / "serve.log")
        try:
            with bl.connect(address) as client:
                yield Ways(client, setup.port)
        finally:
            server.end()


def summary(runs: list[tuple[Result, Result]], singles: tuple[list[float], list[float]]) -> str:
    """Both ways side by side, and what HTTP costs."""
    both = [median(list(results)) for results in zip(*runs, strict=True)]
    rows = [
        [
            way,
            number(result.tokens_per_second),
            number(result.ttft_p50, 1, 1e3),
            number(result.tpot_p50, 2, 1e3),
            number(statistics.median(alone), 2, 1e3),
            number(percentile(alone, 0.99), 2, 1e3),
        ]
        for way, result, alone in zip(WAYS, both, singles, strict=True)
    ]
    spoken, over_http = both
    share = over_http.tokens_per_second / spoken.tokens_per_second
    first = statistics.median(singles[1]) - statistics.median(singles[0])
    head = ["", "tok/s", "TTFT ms", "TPOT ms", "alone: TTFT p50 ms", "p99 ms"]
    return (
        f"{table(head, rows)}\n\nthroughput over HTTP: {share:.1%} of the language's; "
        f"TTFT alone: {first * 1e3:+.2f} ms"
    )


def main() -> None:
    arguments = parse()
    settings = given_settings(arguments)
    runs = []
    with served(settings) as ways:
        ways.run("single")  # what is made lazily is made
        for turn in range(1, arguments.rounds + 1):
            runs.append(ways.run(arguments.workload, http_first=turn % 2 == 0))
            spoken, over_http = (result.tokens_per_second for result in runs[-1])
            print(f"round {turn}: {spoken:.0f}, {over_http:.0f} tok/s", file=sys.stderr, flush=True)
        singles = ways.singles(arguments.singles)
    print(summary(runs, singles))
    if arguments.json:
        content = {
            "machine": machine(),
            "settings": settings,
            "runs": [
                {way: one.as_json() for way, one in zip(WAYS, pair, strict=True)} for pair in runs
            ],
            "singles": dict(zip(WAYS, singles, strict=True)),
        }
        write_json(arguments.json, content)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare HTTP with the language.")
    parser.add_argument("workload", nargs="?", choices=NAMES, default="fewshot64")
    parser.add_argument("--rounds", type=int, default=5, metavar="N")
    parser.add_argument("--singles", type=int, default=40, metavar="N")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every run to a file")
    add_config_flags(parser, leave_out={"address", "model"})
    return parser.parse_args()


if __name__ == "__main__":
    main()
