"""Run the workloads through the language against a runtime; print one line of JSON for each.

usage: python benchmarks/serve.py [--address ADDRESS] [--transformers] [WORKLOAD ...]

Without an address it starts a runtime of its own. With --transformers the same prompts also go
through transformers' `generate`, after that: two users of the cores would slow both.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

from measure import Timed, Timings
from workloads import BATCHES, GREEDY, WORKLOADS, complete

import branchline as bl


def run(names: list[str], backend: bl.Backend) -> None:
    timed = Timed(backend)
    bl.set_default_backend(timed)
    complete.run("Hello", 4, **GREEDY).sync()  # the first request pays for what is made lazily
    for name in names:
        timed.timings = Timings()
        start = time.perf_counter()
        WORKLOADS[name]()
        print(timed.timings.line(name, time.perf_counter() - start), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workloads", nargs="*", choices=[*WORKLOADS, []], metavar="WORKLOAD")
    parser.add_argument("--address", help="a runtime that is there; else one is started")
    parser.add_argument("--transformers", action="store_true", help="then transformers' generate")
    arguments = parser.parse_args()
    names = arguments.workloads or list(WORKLOADS)
    with bl.connect(arguments.address) if arguments.address else bl.Runtime() as backend:
        run(names, backend)
    if arguments.transformers:
        peers = [name for name in names if name in BATCHES]
        script = Path(__file__).with_name("generate_hf.py")
        subprocess.run([sys.executable, script, *peers], check=True)


if __name__ == "__main__":
    main()
