"""`branchline doctor`: what this machine has, which kernels compile, what of a model would fit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from branchline.errors import InvalidRequest, ModelError, RuntimeFailed
from branchline.runtime.config import DTYPES, RuntimeConfig

if TYPE_CHECKING:
    import argparse

    from branchline.runtime.cli.fit import Fit
    from branchline.runtime.cli.machine import Machine

SHIPPED = (80, 90)  # what kernels are compiled for where there is no device


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("doctor", help="what this machine has, and what fits it")
    parser.add_argument(
        "--model", metavar="TEXT", default=RuntimeConfig().model, help="as `serve` takes it"
    )
    parser.add_argument("--dtype", choices=DTYPES, help="of weights, keys and values")
    parser.add_argument(
        "--compile",
        action="store_true",
        help="compile every kernel, for the devices that are there, else for sm_80 and sm_90",
    )
    parser.add_argument("--json", action="store_true", help="write JSON")
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Print the findings. The status is 1 if the model does not fit or a kernel has a fault."""
    from branchline.runtime.cli.machine import inspect_machine

    machine = inspect_machine()
    fits, trouble = _fits(arguments, machine)
    if arguments.json:
        kernels = _compile(machine, quiet=True) if arguments.compile else None
        print(json.dumps(_record(arguments.model, machine, fits, trouble, kernels), indent=2))
    else:
        console = Console()
        console.print(_machine_table(machine))
        console.print(_model_table(arguments.model, fits, trouble))
        kernels = _compile(machine, quiet=False) if arguments.compile else None
    is_well = any(fit.context for fit in fits) and not any(one["faults"] for one in kernels or ())
    return 0 if is_well else 1


def _fits(arguments: argparse.Namespace, machine: Machine) -> tuple[list[Fit], str | None]:
    """How the model fits each place, or why that cannot be said."""
    from branchline.runtime.cli.fit import config_of, fit_cpu, fit_cuda

    try:
        config = config_of(arguments.model)
    except ModelError as error:
        return [], str(error)
    fits = [fit_cpu(config, arguments.dtype or "float32", machine.available)]
    for index, device in enumerate(machine.devices):
        dtype = arguments.dtype or "bfloat16"
        fits.append(fit_cuda(f"cuda:{index}", config, dtype, device.free, RuntimeConfig()))
    return fits, None


def _compile(machine: Machine, *, quiet: bool) -> list[dict[str, Any]]:
    """Compile every kernel in a process of its own: this one may have chosen the interpreter."""
    if machine.packages["triton"] is None:
        raise InvalidRequest("--compile needs triton, which is not installed")
    architectures = sorted({device.architecture for device in machine.devices}) or SHIPPED
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernels.json"
        command = [sys.executable, "-P", "-m", "branchline.kernels.triton.aot"]
        command += ["--json", str(file), "--arch", *map(str, architectures)]
        sink = subprocess.DEVNULL if quiet else None
        done = subprocess.run(command, check=False, env=environment, stdout=sink)
        if not file.exists():
            raise RuntimeFailed(f"compiling ended with status {done.returncode}")
        records: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))
    return records


def _record(
    model: str,
    machine: Machine,
    fits: list[Fit],
    trouble: str | None,
    kernels: list[dict[str, Any]] | None,
) -> dict[str, Any]:
    return {
        "machine": asdict(machine),
        "model": {"name": model, "error": trouble, "fits": [asdict(fit) for fit in fits]},
        "kernels": kernels,
    }


def _machine_table(machine: Machine) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_row("cpu", f"{machine.cpu}, {machine.cores} cores, {machine.vectors}")
    table.add_row("memory", f"{_gib(machine.memory)}, {_gib(machine.available)} available")
    for index, device in enumerate(machine.devices):
        table.add_row(
            f"cuda:{index}",
            f"{device.name}, sm_{device.architecture}, {device.multiprocessors} multiprocessors, "
            f"{_gib(device.memory)}, {_gib(device.free)} free",
        )
    if machine.no_devices is not None:
        table.add_row("cuda", f"no device: {machine.no_devices}")
    versions = [f"{name} {version or 'missing'}" for name, version in machine.packages.items()]
    table.add_row("software", ", ".join([f"python {machine.python}", *versions]))
    return table


def _model_table(model: str, fits: list[Fit], trouble: str | None) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_row("model", model if trouble is None else trouble)
    for fit in fits:
        start = f"{fit.dtype}, {_gib(fit.weights)} of weights"
        if fit.context:
            end = f"a pool of {_gib(fit.pool)}: {fit.tokens:,} tokens, {fit.context:,} a request"
        else:
            end = f"{_gib(max(0, fit.pool))} left for the pool: too little to serve it"
        table.add_row(fit.place, f"{start}, {end}")
    return table


def _gib(size: int) -> str:
    return f"{size / 2**30:,.1f} GiB"
