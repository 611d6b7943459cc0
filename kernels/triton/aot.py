"""Ahead-of-time compilation: what each shipped kernel becomes on a device that need not be there.

`python -P -m branchline.kernels.triton.aot` compiles every variant and prints what a kernel's
author asks first: registers, spills, shared memory, how wide its loads are, whether it uses tensor
cores, how many programs (CTAs) a multiprocessor holds. ptxas and cuobjdump come with Triton.
"""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import os
import re
import subprocess
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from branchline.kernels.triton.launch import INTERPRETED

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from branchline.kernels.triton.variant import Variant

MODULES = (
    "tiles",
    "extend",
    "combine",
    "grow",
    "norm",
    "rope",
    "activation",
    "sample",
    "filters",
    "penalties",
    "bitmask",
)
ARCHITECTURES = (80, 90)  # what we ship for: A100; H100 and H200

WARP = 32  # threads
REGISTERS = 65536  # of a multiprocessor
CTA_RESERVE = 1  # KiB of shared memory that the driver takes of each CTA


@dataclass(frozen=True, slots=True)
class Limits:
    """What one multiprocessor of an architecture has (CUDA's table of compute capabilities)."""

    shared: int  # KiB; a CTA may have all but CTA_RESERVE
    warps: int
    ctas: int


LIMITS = {
    80: Limits(shared=164, warps=64, ctas=32),
    86: Limits(shared=100, warps=48, ctas=16),
    89: Limits(shared=100, warps=48, ctas=24),
    90: Limits(shared=228, warps=64, ctas=32),
}

# One instruction a line: its address, a predicate that it may have, its opcode.
_OPCODE = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", re.MULTILINE)
TENSOR_CORE = ("HMMA", "HGMMA", "IMMA", "IGMMA", "QMMA", "QGMMA")


@dataclass(frozen=True, slots=True)
class Build:
    """What a variant became on one architecture."""

    registers: int  # of a thread
    stack: int  # bytes of a thread
    spills: int  # loads and stores of the stack: LDL, STL
    shared: int  # bytes of a CTA
    warps: int
    ctas: int  # that a multiprocessor holds
    loads: int  # from global memory, into registers or shared memory
    wide_loads: int  # of 16 bytes
    tensor_core: int  # instructions


@dataclass(frozen=True, slots=True)
class Report:
    """A variant on one architecture, and what is wrong with it."""

    module: str
    name: str
    architecture: int
    build: Build | None  # None: it does not compile
    faults: tuple[str, ...]


@lru_cache
def variants_of(module: str) -> dict[str, Variant]:
    """The variants of a module of this package, by name."""
    found: list[Variant] = importlib.import_module(f"{__package__}.{module}").variants()
    by_name = {variant.name: variant for variant in found}
    assert len(by_name) == len(found), f"{module}: two variants of one name"
    return by_name


def faults(build: Build, variant: Variant, architecture: int) -> tuple[str, ...]:
    """What must not be in a shipped kernel, in words."""
    limit = (LIMITS[architecture].shared - CTA_RESERVE) * 1024
    found = {
        f"spills {build.stack} bytes ({build.spills} accesses)": build.stack or build.spills,
        f"{build.shared} bytes of shared memory, over {limit}": build.shared > limit,
        f"{build.wide_loads} wide loads of {build.loads}, under {variant.wide_loads}": (
            build.wide_loads < variant.wide_loads
        ),
        "no tensor cores": variant.uses_dot and not build.tensor_core,
    }
    return tuple(text for text, is_so in found.items() if is_so)


def build(variant: Variant, architecture: int) -> Build:
    """Compile one variant and read its machine code."""
    names = variant.kernel.arg_names
    divisible = [["tt.divisibility", 16]]
    compiled = triton.compile(
        ASTSource(
            fn=variant.kernel,
            signature={name: variant.types.get(name, "constexpr") for name in names},
            constexprs=variant.constants,
            attrs={
                (index,): divisible
                for index, name in enumerate(names)
                if name in variant.aligned or variant.types.get(name, "").startswith("*")
            },
        ),
        target=GPUTarget("cuda", architecture, WARP),
        options=variant.options,
    )
    usage, opcodes = _disassemble(compiled.asm["cubin"])
    shared, warps = compiled.metadata.shared, compiled.metadata.num_warps
    registers = usage["REG"]
    loads = [parts for parts in opcodes if parts[0] in ("LDG", "LDGSTS")]
    return Build(
        registers=registers,
        stack=usage["STACK"],
        spills=sum(parts[0] in ("LDL", "STL") for parts in opcodes),
        shared=shared,
        warps=warps,
        ctas=ctas_of(registers, warps, shared, architecture),
        loads=len(loads),
        wide_loads=sum("128" in parts for parts in loads),
        tensor_core=sum(parts[0] in TENSOR_CORE for parts in opcodes),
    )


def _disassemble(cubin: bytes) -> tuple[dict[str, int], list[list[str]]]:
    """What the code uses (REG, STACK …), and the opcode of each instruction, cut at its dots."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        tool = triton.knobs.nvidia.cuobjdump.path
        text = subprocess.run(
            [tool, "-res-usage", "-sass", file.name], capture_output=True, text=True, check=True
        ).stdout
    usage = {name: int(value) for name, value in re.findall(r"\b(REG|STACK):(\d+)", text)}
    return usage, [opcode.split(".") for opcode in _OPCODE.findall(text)]


def ctas_of(registers: int, warps: int, shared: int, architecture: int) -> int:
    """How many CTAs one multiprocessor holds; registers go to warps by the 256."""
    by_registers = REGISTERS // (-(-registers * WARP // 256) * 256 * warps)
    limits = LIMITS[architecture]
    by_shared = limits.shared * 1024 // (shared + CTA_RESERVE * 1024)
    return min(by_registers, by_shared, limits.warps // warps, limits.ctas)


def report(module: str, name: str, architecture: int) -> Report:
    """Compile and judge one variant; a compiler's refusal is a fault too."""
    variant = variants_of(module)[name]
    try:
        made = build(variant, architecture)
    except (triton.TritonError, RuntimeError) as error:
        return Report(module, name, architecture, None, (f"does not compile: {error}",))
    return Report(module, name, architecture, made, faults(made, variant, architecture))


def reports(
    modules: Sequence[str], architectures: Sequence[int], processes: int
) -> Iterator[Report]:
    """Compile all variants of `modules`; they come in the order of modules and variants."""
    work = [
        (module, name, architecture)
        for module in modules
        for name in variants_of(module)
        for architecture in architectures
    ]
    context = multiprocessing.get_context("spawn")  # a forked child shares torch's threads' locks
    with ProcessPoolExecutor(min(processes, len(work)), mp_context=context) as pool:
        yield from pool.map(report, *zip(*work, strict=True))


HEADER = f"{'':34}{'arch':>6}{'regs':>6}{'spills':>8}{'shared':>8}{'wide':>8}{'MMA':>6}{'CTAs':>6}"


def line(one: Report) -> str:
    """A row of the table: shared memory in KiB, wide loads of all, CTAs of a multiprocessor."""
    made, start = one.build, f"{one.name:34}{f'sm_{one.architecture}':>6}"
    if made is not None:
        start += f"{made.registers:6}{made.spills:8}{made.shared / 1024:8.1f}"
        start += f"{f'{made.wide_loads}/{made.loads}':>8}{made.tensor_core:6}{made.ctas:6}"
    return "  ".join([start, *one.faults])


def main(argv: Sequence[str] | None = None) -> int:
    """Compile, print the table, and say with the exit status whether a variant has a fault."""
    parser = argparse.ArgumentParser(prog="python -m branchline.kernels.triton.aot")
    parser.add_argument("modules", nargs="*", default=MODULES, help=f"of {', '.join(MODULES)}")
    parser.add_argument("--arch", type=int, nargs="+", default=ARCHITECTURES, choices=LIMITS)
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--json", type=Path, help="file for one record a variant")
    arguments = parser.parse_args(argv)
    if INTERPRETED:
        parser.error("TRITON_INTERPRET=1 leaves nothing to compile; unset it")
    print(HEADER)
    done: list[dict[str, Any]] = []
    faulty = 0
    for one in reports(arguments.modules, arguments.arch, arguments.processes):
        print(line(one), flush=True)
        done.append(asdict(one))
        faulty += bool(one.faults)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(done, indent=1), encoding="utf-8")
    print(f"{len(done)} compiled, {faulty} with faults")
    return 1 if faulty else 0


if __name__ == "__main__":
    raise SystemExit(main())
