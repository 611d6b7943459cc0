"""Every shipped kernel, compiled for devices that are not here."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from branchline.kernels.triton import aot
from branchline.kernels.triton.norm import add_rms_norm_variant

if TYPE_CHECKING:
    from collections.abc import Callable

    Compile = Callable[..., subprocess.CompletedProcess[str]]

GOOD = aot.Build(
    registers=96, stack=0, spills=0, shared=40_000, warps=4, ctas=5, loads=4, wide_loads=3,
    tensor_core=8,
)  # fmt: skip


@pytest.fixture(scope="module")
def python(request: pytest.FixtureRequest) -> Compile:
    """Runs Python with kernels that compile; what is compiled stays in pytest's own cache."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(request.config.cache.mkdir("triton"))

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-P", "-W", "error", *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, check=False, env=environment, timeout=600
        )

    return run


def test_every_variant_compiles_without_a_fault(
    python: Compile, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "reports.json"
    done = python("-m", "branchline.kernels.triton.aot", "--json", str(file))
    with capsys.disabled():  # registers and occupancy, for who reads the log
        print(f"\n{done.stdout}")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(file.read_text())
    wanted = {
        (module, name, architecture)
        for module in aot.MODULES
        for name in aot.variants_of(module)
        for architecture in (80, 90)
    }
    assert {(one["module"], one["name"], one["architecture"]) for one in found} == wanted
    assert all(one["build"]["ctas"] >= 1 and one["faults"] == [] for one in found)


def test_no_module_is_forgotten() -> None:
    sources = Path(aot.__file__).parent.glob("*.py")
    assert {one.stem for one in sources if "\ndef variants()" in one.read_text()} == set(
        aot.MODULES
    )


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({}, None),
        ({"stack": 96, "spills": 12}, "spills 96 bytes (12 accesses)"),
        ({"shared": 240_000}, "240000 bytes of shared memory, over 232448"),
        ({"wide_loads": 2}, "2 wide loads of 4, under 3"),
        ({"tensor_core": 0}, "no tensor cores"),
    ],
)
def test_faults(change: dict[str, int], fault: str | None) -> None:
    variant = dataclasses.replace(
        add_rms_norm_variant(4096, torch.bfloat16), wide_loads=3, uses_dot=True
    )
    found = aot.faults(dataclasses.replace(GOOD, **change), variant, 90)
    assert found == (() if fault is None else (fault,))


def test_what_is_read_of_machine_code(python: Compile) -> None:
    """A stride that 16 need not divide costs the wide loads; one warp for a long row spills."""
    done = python(
        "-c",
        "import dataclasses, json, torch\n"
        "from branchline.kernels.triton import aot, norm\n"
        "good = norm.add_rms_norm_variant(4096, torch.bfloat16)\n"
        "strided = dataclasses.replace(good, aligned=frozenset())\n"
        "crowded = dataclasses.replace(good, num_warps=1)\n"
        "print(json.dumps([dataclasses.asdict(aot.build(one, 90))\n"
        "                  for one in (good, strided, crowded)]))",
    )
    assert done.returncode == 0, done.stderr
    good, strided, crowded = json.loads(done.stdout)
    assert (good["wide_loads"], good["loads"], good["stack"], good["spills"]) == (3, 3, 0, 0)
    assert strided["wide_loads"] == 1
    assert strided["loads"] > 3
    assert crowded["stack"] > 0
    assert crowded["spills"] > 0


@pytest.mark.parametrize(
    ("registers", "warps", "shared", "architecture", "ctas"),
    [
        (96, 4, 39 * 1024, 90, 5),  # registers and shared memory allow five
        (110, 4, 73 * 1024, 90, 3),  # shared memory
        (255, 4, 0, 80, 2),  # registers
        (24, 16, 64, 90, 4),  # warps
        (16, 1, 0, 80, 32),  # CTAs
    ],
)
def test_programs_on_a_multiprocessor(
    registers: int, warps: int, shared: int, architecture: int, ctas: int
) -> None:
    assert aot.ctas_of(registers, warps, shared, architecture) == ctas


def test_nothing_compiles_under_the_interpreter(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        aot.main([])
    assert "unset it" in capsys.readouterr().err
