"""Runs the stages one after the other, each within its time, whatever happens to one of them."""

from __future__ import annotations

import os
import platform
import subprocess
import threading
import time
import traceback
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import torch
import triton

from gpu_stages import (
    ceilings,
    compiled,
    correct_attention,
    correct_kernels,
    decode,
    hits,
    offline,
    parity,
    prefill,
    sharing,
    sweep_attention,
    sweep_kernels,
)
from gpu_stages.bench import Bench
from gpu_stages.record import NeedsDevice, Record, Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from gpu_stages.record import Row

    Work = Callable[[Bench], Iterator[Row]]

# In this order: what everything is compared with, whether it is right, how fast it is. With the
# seconds that each may take; what it has found by then counts.
STAGES: dict[str, tuple[Work, float]] = {
    "ceilings": (ceilings.run, 20),
    "compile": (compiled.run, 45),
    "kernels right": (correct_kernels.run, 25),
    "attention right": (correct_attention.run, 30),
    "kernels": (sweep_kernels.run, 25),
    "attention": (sweep_attention.run, 45),
    "configurations": (sweep_attention.configurations, 30),
    "model right": (parity.run, 50),
    "decode": (decode.run, 60),
    "prefix hit": (hits.run, 25),
    "shared prefix": (sharing.run, 50),
    "prefill": (prefill.run, 35),
    "offline": (offline.run, 35),
}
GRACE = 60  # seconds past the limit after which a stage that hangs is given up, and so is the rest


def run(device: str, names: Sequence[str], limit: float, path: Path | None) -> int:
    """Run the stages (by default all) and print the table; 1: one of them failed."""
    if unknown := set(names) - set(STAGES):
        raise SystemExit(f"no such stage: {', '.join(sorted(unknown))}; of {', '.join(STAGES)}")
    if device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("torch sees no CUDA device here; --device cpu runs what needs none")
    start = time.monotonic()
    bench = Bench(torch.device("cuda", 0) if device == "cuda" else torch.device("cpu"))
    record = Record(machine(bench.device))
    watchdog = threading.Timer(limit + GRACE, _give_up, (record, path))
    watchdog.daemon = True
    watchdog.start()
    for name in names or STAGES:
        work, most = STAGES[name]
        stage = Stage(name)
        record.stages.append(stage)
        print(f"\n{name}", flush=True)
        _run_stage(bench, work, stage, min(most, start + limit - time.monotonic()))
        print(f"  {stage.seconds:.1f} s, {stage.status} {stage.reason}".rstrip(), flush=True)
        record.write(path)
    watchdog.cancel()
    if bench.on_device:
        record.machine["after"] = nvidia_smi()
    record.write(path)
    print(f"\n{'=' * 100}\n{record.table()}")
    return 1 if record.failed else 0


def _run_stage(bench: Bench, work: Work, stage: Stage, most: float) -> None:
    start = time.monotonic()
    bench.until = start + most
    if bench.late():
        stage.status, stage.reason = "late", "no time was left"
        return
    try:
        for row in work(bench):
            stage.rows.append(row)
            print(row.line, flush=True)
            if bench.late():
                stage.status, stage.reason = "late", f"{most:.0f} s were over"
                break
        else:
            stage.status = "done"
    except NeedsDevice as reason:
        stage.status, stage.reason = "skipped", str(reason)
    except Exception as error:  # noqa: BLE001 - whatever it is, the other stages go on
        stage.status, stage.reason = "failed", f"{type(error).__name__}: {error}"[:500]
        traceback.print_exc()
    stage.seconds = time.monotonic() - start
    try:
        bench.free()
    except RuntimeError as error:  # of an earlier launch, after which a device does nothing more
        stage.status, stage.reason = "failed", f"{stage.reason} {error}"[:500]


def _give_up(record: Record, path: Path | None) -> None:
    """The main thread waits for a device that will not answer: save what there is."""
    record.stages[-1].status = "failed"
    record.stages[-1].reason = "hangs"
    record.write(path)
    print(record.table(), flush=True)
    os._exit(3)


def machine(device: torch.device) -> dict[str, Any]:
    """What ran where, and when."""
    found: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": "cpu, interpreted",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": triton.__version__,
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found["device"] = properties.name
        found["multiprocessors"] = properties.multi_processor_count
        found["memory"] = f"{properties.total_memory / 2**30:.1f} GiB"
        found["before"] = nvidia_smi()
    return found


def nvidia_smi() -> str:
    """Clocks, power and temperature, as the driver's tool has them; empty without it."""
    query = "driver_version,clocks.sm,clocks.mem,power.draw,temperature.gpu"
    try:
        answer = subprocess.run(
            ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return answer.stdout.strip()
