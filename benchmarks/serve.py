"""Run the workloads through the language against a runtime; print a line for each, then a table.

usage: python benchmarks/serve.py [WORKLOAD ...] [--repeat N] [--warm] [--json FILE]
                                  [--at ADDRESS | any setting of `branchline serve`]

Without an address it starts a runtime of its own, with the settings given. Each workload starts
with an empty cache; with --warm it runs once before it is measured.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from measure import Result, Stopwatch, Timed, Timings, median
from report import details, machine, write_json
from workloads import GREEDY, WORKLOADS, complete

import branchline as bl
from branchline import eventloop
from branchline.runtime.cli.flags import add_config_flags, given_settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from branchline.client import Client
    from branchline.runtime_info import RuntimeInfo


def measure(name: str, client: Client, *, warm: bool) -> Result:
    """Run a workload once."""
    timed = Timed(client)
    bl.set_default_backend(timed)
    eventloop.run(client.flush())
    if warm:
        WORKLOADS[name]()
    timed.timings = Timings()
    before = eventloop.run(client.info())
    watch = Stopwatch()
    WORKLOADS[name]()
    result = watch.result(name, timed.timings)
    return with_info(result, before, eventloop.run(client.info()))


def with_info(result: Result, before: RuntimeInfo, after: RuntimeInfo) -> Result:
    """A result with what the runtime counted meanwhile."""
    result = result.with_prompts(
        total=after.prompt_tokens - before.prompt_tokens,
        saved=after.cached_prompt_tokens - before.cached_prompt_tokens,
        computed=after.computed_prompt_tokens - before.computed_prompt_tokens,
    )
    steps = after.steps - before.steps
    parts = {
        part: (seconds - before.step_seconds.get(part, 0.0)) / steps
        for part, seconds in after.step_seconds.items()
    }
    read = after.positions_read - before.positions_read
    return replace(
        result,
        steps=steps,
        host_seconds=sum(seconds for part, seconds in parts.items() if part != "wait"),
        step_seconds=parts,
        read_share=read / (after.positions_attended - before.positions_attended),
    )


def measure_all(
    names: Sequence[str], client: Client, repeat: int, *, warm: bool
) -> dict[str, list[Result]]:
    """Run the workloads in turn, `repeat` times."""
    # The first request pays for what is made lazily.
    complete.run("Hello", 4, backend=client, **GREEDY).sync()
    results: dict[str, list[Result]] = {name: [] for name in names}
    for _ in range(repeat):
        for name in names:
            results[name].append(measure(name, client, warm=warm))
            print(results[name][-1].line(), flush=True)
    return results


def main() -> None:
    arguments = parse()
    settings = given_settings(arguments)
    names = arguments.workloads or list(WORKLOADS)
    runtime = bl.connect(arguments.at) if arguments.at else bl.Runtime(**settings)
    with runtime as client:
        results = measure_all(names, client, arguments.repeat, warm=arguments.warm)
    print(details([median(runs) for runs in results.values()]))
    if arguments.json:
        content = {
            "machine": machine(),
            "settings": settings,
            "warm": arguments.warm,
            "results": {name: [one.as_json() for one in runs] for name, runs in results.items()},
        }
        write_json(arguments.json, content)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Run the workloads against a runtime.")
    known = ", ".join(WORKLOADS)
    parser.add_argument(
        "workloads", nargs="*", choices=[*WORKLOADS, []], metavar="WORKLOAD", help=known
    )
    parser.add_argument("--repeat", type=int, default=1, metavar="N", help="report medians of N")
    parser.add_argument("--warm", action="store_true", help="run each workload once before it")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every run to a file")
    parser.add_argument("--at", metavar="ADDRESS", help="a runtime that is there; else start one")
    add_config_flags(parser, leave_out={"address"})
    arguments = parser.parse_args()
    if arguments.at and given_settings(arguments):
        parser.error("--at: the settings of a runtime that is there are what they are")
    return arguments


if __name__ == "__main__":
    main()
