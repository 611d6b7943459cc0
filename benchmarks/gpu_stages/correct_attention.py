"""Attention on the device against float64: odd lengths, scattered pages, all others NaN."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from branchline.kernels import Segment
from branchline.kernels.triton.tile_shapes import SIZES, Heads
from gpu_stages.cases import Case, error
from gpu_stages.record import Row
from gpu_stages.targets import INTERPRETED_BFLOAT16, TOLERANCE
from gpu_stages.timer import poisoned

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpu_stages.bench import Bench

# Queries and positions of rows, and segments.
SMALL = {
    "decodes": ([1] * 4, [1, 64, 67, 131], []),
    "all at once": ([1, 4, 129, 1], [30, 90, 140, 65], []),
    "shared": ([1, 1, 3], [140, 131, 150], [Segment(0, 129, (0, 1, 2)), Segment(129, 130, (0, 2))]),
}
LARGE = {
    "decodes": ([1] * 9, [1, 63, 64, 65, 1023, 1024, 1025, 4099, 33], []),
    "many decodes": ([1] * 256, [n % 701 + 1 for n in range(256)], []),
    "a long decode": ([1], [32771], []),
    "short extends": ([2, 17, 64, 127], [3, 5937, 191, 1000], []),
    "long extends": ([128, 131, 1000], [128, 2210, 1000], []),
    "all at once": ([1, 4, 130, 1, 33], [3000, 90, 1199, 131, 33], []),
    "shared": (
        [1, 1, 1, 3, 17, 1],
        [2100, 2200, 2049, 2060, 3001, 2051],
        [
            Segment(0, 2047, (0, 1, 2, 3, 4, 5)),
            Segment(2047, 2048, (1, 2)),
            Segment(2047, 2050, (4, 5)),
        ],
    ),
}
STEPS = 5
# Beside the sizes that are shipped.
MORE_HEADS = (Heads(1, 16, 128, torch.bfloat16), Heads(2, 4, 64, torch.float32))


def run(bench: Bench) -> Iterator[Row]:
    """Every kind of batch with the model's heads, then other heads and types."""
    batches = LARGE if bench.on_device else SMALL
    for name, (queries, lengths, segments) in batches.items():
        case = Case(bench.device, bench.scale.heads, queries, lengths, segments)
        yield _row(name, case, bench)
    yield _grown(bench)
    for heads in _others(bench):
        queries, lengths, segments = batches["all at once"]
        yield _row("all at once", Case(bench.device, heads, queries, lengths, segments), bench)
        queries, lengths, segments = batches["shared"]
        yield _row("shared", Case(bench.device, heads, queries, lengths, segments), bench)


def _others(bench: Bench) -> list[Heads]:
    return [*SIZES[1:], *MORE_HEADS] if bench.on_device else [Heads(1, 3, 64, torch.float16)]


def _row(name: str, case: Case, bench: Bench) -> Row:
    case.poison()
    with poisoned(), torch.inference_mode():
        found = case.calls()[0]()
    return _compared(f"{case.heads.name}: {name}", found, case, bench)


def _grown(bench: Bench) -> Row:
    """A plan of some steps ago, which has grown since."""
    lengths = [63 + STEPS, 64 + STEPS, 62 + STEPS, 1 + STEPS]
    case = Case(bench.device, bench.scale.heads, [1] * 4, lengths)
    case.load([length - STEPS for length in lengths])
    case.poison()
    with poisoned(), torch.inference_mode():
        for _ in range(STEPS):
            case.plan.grow()
        found = case.calls()[0]()
    return _compared(f"{case.heads.name}: grown by {STEPS}", found, case, bench)


def _compared(name: str, found: torch.Tensor, case: Case, bench: Bench) -> Row:
    dtype = str(case.heads.dtype).removeprefix("torch.")
    most = TOLERANCE[dtype]
    if dtype == "bfloat16" and not bench.on_device:
        most = INTERPRETED_BFLOAT16
    return Row(name, error(found, case.wanted()), "error", most)
