"""Compiles every shipped kernel for the device, several at a time, before it is wanted."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING

import torch

from branchline.kernels.triton import aot
from branchline.kernels.triton.tile_shapes import SIZES
from gpu_stages.correct_attention import MORE_HEADS
from gpu_stages.record import NeedsDevice, Row
from gpu_stages.sweep_attention import build_candidate, build_shipped, candidates

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpu_stages.bench import Bench

_SPARE = 2  # processors for this process and the driver


def run(bench: Bench) -> Iterator[Row]:
    """What each module's variants became here; the launches that follow find them compiled."""
    bench.need_device()
    major, minor = torch.cuda.get_device_capability(bench.device)
    architecture = 10 * major + minor
    if architecture not in aot.LIMITS:
        raise NeedsDevice(f"nothing is shipped for sm_{architecture}")
    processes = max(1, len(os.sched_getaffinity(0)) - _SPARE)
    start = time.perf_counter()
    compiled: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    found: dict[str, list[str]] = {}
    for one in aot.reports(aot.MODULES, (architecture,), processes):
        compiled[one.module] += 1
        faults[one.module] += bool(one.faults)
        found.setdefault(one.module, []).extend(f"{one.name}: {fault}" for fault in one.faults)
    for module, count in compiled.items():
        note = f"of {count}; {'; '.join(found[module])}"[:200].rstrip("; ")
        yield Row(f"{module}: variants with faults", faults[module], "faults", 0, note)
    spilling = [name for name, spills in _build_more(architecture, processes) if spills]
    note = "with the configurations to be timed"
    note += f", of which these spill: {', '.join(spilling)}" if spilling else ""
    yield Row("compiling", time.perf_counter() - start, "s", note=note[:200])


def _build_more(architecture: int, processes: int) -> Iterator[tuple[str, int]]:
    """Attention as this run launches it: other heads and configurations. Names and spills."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        jobs = {
            f"{module.__name__.rpartition('.')[2]} {key} {launch}": pool.submit(
                build_candidate, number, architecture
            )
            for number, (module, key, launch) in enumerate(candidates())
        }
        jobs |= {
            heads.name: pool.submit(build_shipped, heads, architecture)
            for heads in (*SIZES[1:], *MORE_HEADS)
        }
        for name, job in jobs.items():
            try:
                yield name, job.result()
            except Exception as error:  # noqa: BLE001 - a configuration may not fit the device
                yield f"{name}: {type(error).__name__}", 1
