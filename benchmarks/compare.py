"""Run the same prompts through Branchline and its peers; print the table that README.md shows.

usage: python benchmarks/compare.py --peers FOLDER --json FILE [--chart FILE] [--rounds N] [--warm]
                                    [--engines ENGINE …] [--workloads WORKLOAD …] [--limit SECONDS]

FOLDER is what `peers/setup.sh` has filled. In each round every engine runs every workload once, one
engine after the other, all with an empty cache or, with --warm, all after a run that was not
measured. Only one engine has the cores at a time. What is shown are medians over the rounds.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from chart import draw
from measure import Result, median
from peers.client_side import NAMES
from peers.engines import Peer, branchline, llama_cpp, vllm
from peers.scripts import Script
from report import machine, number, table, write_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

OURS = ("branchline float32", "branchline int8")
PEERS = ("vLLM bf16", "llama.cpp Q4_1")
LONG = 60.0  # seconds; a workload that takes an engine longer is measured once

Results = dict[str, dict[str, list[Result]]]  # by engine, by workload


class Engine(Protocol):
    """Something that runs workloads."""

    name: str

    def measure(self, names: Sequence[str], *, warm: bool) -> Iterator[tuple[str, Result | None]]:
        """Run each workload that it can run once; None for one that was given up."""

    def end(self) -> None:
        """Stop what still runs."""


def engines(folder: Path, limit: float) -> dict[str, Callable[[], Engine]]:
    """Every engine by its name on the command line."""

    def log(name: str) -> Path:
        return folder / f"{name}.log"

    def ours(name: str, file: str, *settings: str) -> Peer:
        server, reset = branchline(*settings), "/flush_cache"
        return Peer(name, server, log(file), reset_path=reset, limit=limit, stays=False)

    return {
        "float32": lambda: ours(OURS[0], "float32"),
        "int8": lambda: ours(OURS[1], "int8", "--quantization=int8"),
        "vllm": lambda: Peer(
            PEERS[0], vllm(folder), log("vllm"), reset_path="/reset_prefix_cache", limit=limit
        ),
        "llama": lambda: Peer(
            PEERS[1], llama_cpp(folder), log("llama"), reset_path=None, limit=limit
        ),
        "transformers": lambda: Script(
            "transformers float32", ["generate_hf.py"], workloads=["single"], forgets=False
        ),
    }


class Comparison:
    """What was measured so far."""

    def __init__(self, names: Sequence[str], *, warm: bool) -> None:
        self._names = names
        self._warm = warm
        self.results: Results = {}
        self.given_up: dict[str, list[str]] = {}  # by engine: workloads

    def round(self, engine: Engine) -> None:
        """Let an engine run what it has not shown to take long."""
        runs = self.results.setdefault(engine.name, {})
        names = [name for name in self._names if self._again(engine.name, name)]
        for name, result in engine.measure(names, warm=self._warm):
            if result is None:
                self.given_up.setdefault(engine.name, []).append(name)
                say(f"{engine.name}, {name}: given up")
            else:
                runs.setdefault(name, []).append(result)
                say(
                    f"{engine.name}, {name}: {result.seconds:.1f} s, "
                    f"{result.tokens_per_second:.0f} tok/s, load {result.load_after:.1f}"
                )

    def _again(self, engine: str, name: str) -> bool:
        if name in self.given_up.get(engine, []):
            return False
        return all(result.seconds < LONG for result in self.results[engine].get(name, []))

    def medians(self) -> dict[str, dict[str, Result]]:
        """By engine, by workload."""
        return {
            engine: {name: median(results) for name, results in runs.items()}
            for engine, runs in self.results.items()
        }

    def load(self) -> str:
        """The lowest and the highest load average that a run began or ended with."""
        runs = [
            run for by_name in self.results.values() for runs in by_name.values() for run in runs
        ]
        loads = [load for run in runs for load in (run.load_before, run.load_after)]
        return f"{min(loads):.1f} to {max(loads):.1f}" if loads else number(None)

    def as_json(self) -> dict[str, Any]:
        """Every run, and the medians."""
        return {
            "machine": machine(),
            "warm": self._warm,
            "given_up": self.given_up,
            "medians": {
                engine: {name: result.as_json() for name, result in runs.items()}
                for engine, runs in self.medians().items()
            },
            "runs": {
                engine: {name: [one.as_json() for one in runs] for name, runs in by_name.items()}
                for engine, by_name in self.results.items()
            },
        }


def speeds(medians: dict[str, dict[str, Result]], names: Sequence[str]) -> str:
    """Tokens per second and seconds of every engine."""

    def cell(result: Result | None) -> str:
        if result is None:
            return number(None)
        return f"{result.tokens_per_second:,.0f} ({result.seconds:.1f} s)"

    rows = [[name, *(cell(runs.get(name)) for runs in medians.values())] for name in names]
    return table(["tok/s", *medians], rows)


def ratios(medians: dict[str, dict[str, Result]], names: Sequence[str]) -> str:
    """How many times as fast as each peer each of ours is."""
    pairs = [(ours, peer) for ours in OURS for peer in PEERS if ours in medians and peer in medians]

    def cell(name: str, ours: str, peer: str) -> str:
        if name not in medians[ours] or name not in medians[peer]:
            return number(None)
        return number(medians[peer][name].seconds / medians[ours][name].seconds, 2)

    head = ["times as fast", *(f"{ours} / {peer}" for ours, peer in pairs)]
    return table(head, [[name, *(cell(name, *pair) for pair in pairs)] for name in names])


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    arguments = parse()
    known = engines(arguments.peers.resolve(), arguments.limit)
    comparison = Comparison(arguments.workloads, warm=arguments.warm)
    with ExitStack() as stack:
        chosen = [known[name]() for name in arguments.engines]
        for engine in chosen:
            stack.callback(engine.end)
        for turn in range(1, arguments.rounds + 1):
            say(f"round {turn} of {arguments.rounds}")
            for engine in chosen:
                comparison.round(engine)
                write_json(arguments.json, comparison.as_json())
    medians = comparison.medians()
    print(speeds(medians, arguments.workloads))
    print("\n" + ratios(medians, arguments.workloads))
    print(f"\nload average: {comparison.load()}")
    for name, workloads in comparison.given_up.items():
        print(f"\n{name}: given up after {arguments.limit:g} s: {', '.join(workloads)}")
    if arguments.chart:
        draw(arguments.json, arguments.chart)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare Branchline with its peers.")
    everyone = list(engines(Path(), limit=0))
    parser.add_argument("--peers", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--engines", nargs="+", choices=everyone, default=everyone)
    parser.add_argument("--workloads", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--rounds", type=int, default=3, metavar="N")
    parser.add_argument("--warm", action="store_true", help="run each workload once before it")
    parser.add_argument(
        "--limit", type=float, default=240.0, metavar="SECONDS", help="give up after"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", required=True)
    parser.add_argument("--chart", type=Path, metavar="FILE", help="a PNG to draw")
    return parser.parse_args()


if __name__ == "__main__":
    main()
