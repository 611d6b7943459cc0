"""What this machine has, as far as a runtime cares."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from dataclasses import dataclass
from pathlib import Path

from branchline.runtime.sizing import available_memory

PACKAGES = ("torch", "triton", "transformers", "tokenizers", "numpy")


@dataclass(frozen=True, slots=True)
class Device:
    """A CUDA device."""

    name: str
    architecture: int  # 90 for compute capability 9.0
    multiprocessors: int
    memory: int  # bytes
    free: int  # bytes


@dataclass(frozen=True, slots=True)
class Machine:
    """The parts of a machine."""

    cpu: str
    cores: int  # this process may use
    vectors: str  # torch's name of the widest instructions it uses
    memory: int  # bytes
    available: int  # bytes, without swapping, within the container's limit
    python: str
    packages: dict[str, str | None]  # version; None where it is not installed
    devices: tuple[Device, ...]
    no_devices: str | None  # why there are none


def inspect_machine() -> Machine:
    """Look at this machine; a CUDA device gets a context by it."""
    import torch

    devices, no_devices = _devices()
    return Machine(
        cpu=cpu_name(),
        cores=len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count() or 1,
        vectors=torch.backends.cpu.get_cpu_capability(),
        memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        available=available_memory(),
        python=platform.python_version(),
        packages={name: _version(name) for name in PACKAGES},
        devices=devices,
        no_devices=no_devices,
    )


def _devices() -> tuple[tuple[Device, ...], str | None]:
    """The CUDA devices, or why there are none."""
    import torch

    if torch.version.cuda is None:
        return (), f"torch {torch.__version__} is built without CUDA"
    if not torch.cuda.is_available():
        return (), f"torch is built for CUDA {torch.version.cuda}, and no device answers"
    found = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        free, memory = torch.cuda.mem_get_info(index)
        found.append(
            Device(
                name=properties.name,
                architecture=10 * properties.major + properties.minor,
                multiprocessors=properties.multi_processor_count,
                memory=memory,
                free=free,
            )
        )
    return tuple(found), None


def cpu_name(info: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's name, where the system tells it."""
    if info.exists():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
