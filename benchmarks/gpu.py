"""Measure the CUDA device: one command, one table, one JSON file.

usage: python -P benchmarks/gpu.py [STAGE …] [--device cpu] [--limit SECONDS] [--json FILE]

Needs torch, triton and numpy, and no installation: a checkout will do. Under seven minutes on an
H200; `--device cpu` runs every stage it can on a model of two layers, with Triton's interpreter,
to show that the rest will work where a device is.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

# Also in the processes that compile, which read this file anew.
sys.path.append(str(Path(__file__).resolve().parent))

from gpu_stages.checkout import make_importable

make_importable(Path(__file__).resolve().parents[1])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("stages", nargs="*", metavar="STAGE", help="by name (default: all)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--limit", type=float, default=400, help="seconds for all stages together")
    parser.add_argument("--json", type=Path, help="the record of the run, written after each stage")
    arguments = parser.parse_args()
    # Triton decides at its import what it compiles for.
    os.environ["TRITON_INTERPRET"] = "1" if arguments.device == "cpu" else "0"
    from gpu_stages.run import run

    return run(arguments.device, arguments.stages, arguments.limit, arguments.json)


if __name__ == "__main__":
    raise SystemExit(main())
