"""What the device can do at best: everything else is compared with this."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from gpu_stages.record import Row
from gpu_stages.targets import COPY_BANDWIDTH, MATRIX_RATE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

    from gpu_stages.bench import Bench

LARGE, IN_CACHE = 2**32, 2**24  # bytes
BLOCK = 4096  # float32 of a step of the loop: 4 loads of 16 bytes a thread, of 8 warps
SIDE = 8192
EMPTY_KERNELS = 300


@triton.jit
def read_kernel(source, sums, size, BLOCK: tl.constexpr):  # noqa: N803
    """Programs take every so manieth block and leave one sum each."""
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(tl.program_id(0) * BLOCK, size, tl.num_programs(0) * BLOCK):
        total += tl.load(source + start + tl.arange(0, BLOCK))
    tl.store(sums + tl.program_id(0), tl.sum(total, 0))


def run(bench: Bench) -> Iterator[Row]:
    """Bandwidths, the matrix rate, and what a kernel costs that does nothing."""
    bench.need_device()
    timer = bench.timer
    source = torch.randn(LARGE // 4, device=bench.device)
    times = timer.calls([_copying(source)], 10)
    bench.copy_bandwidth = 2 * LARGE / times.median
    yield Row("copy, read and written", bench.copy_bandwidth / 1e12, "TB/s", note=times.note)
    times = timer.calls([_reading(source)], 10)
    yield Row("read only", LARGE / times.median / 1e12, "TB/s", note=times.note)
    cached = source[: IN_CACHE // 4].clone()
    times = timer.calls([_reading(cached)] * 20, 10)
    yield Row("read of 16 MB, from the L2 cache", IN_CACHE / times.median / 1e12, "TB/s")
    left, right = bench.normal(SIDE, SIDE), bench.normal(SIDE, SIDE)
    times = timer.calls([lambda: left @ right], 10)
    note = f"{times.note}; {MATRIX_RATE / 1e12:.0f} was seen before"
    yield Row("bf16 8192³", 2 * SIDE**3 / times.median / 1e12, "TFLOP/s", note=note)
    one = torch.zeros(1, device=bench.device)
    times = timer.calls([lambda: one.add_(1)] * EMPTY_KERNELS)
    yield Row("a kernel of a graph that does nothing", 1e6 * times.median, "us")
    ratio = bench.copy_bandwidth / COPY_BANDWIDTH
    yield Row("copy, of what targets are computed from", 100 * ratio, "%")


def _copying(source: Tensor) -> Callable[[], object]:
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def _reading(source: Tensor) -> Callable[[], object]:
    programs = 8 * torch.cuda.get_device_properties(source.device).multi_processor_count
    sums = torch.empty(programs, device=source.device)
    return lambda: read_kernel[(programs,)](
        source, sums, source.numel(), BLOCK=BLOCK, num_warps=8, num_stages=3
    )
