"""How long the device takes: calls as one graph, between two events, several times."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Call = Callable[[], object]

REPEATS = 20


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds: of sorted runs the median, and what a tenth of them were below and above."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Times:
        """The times of some runs."""
        ordered = sorted(seconds)
        last = len(ordered) - 1
        return cls(*(ordered[round(part * last)] for part in (0.5, 0.1, 0.9)))

    @property
    def note(self) -> str:
        """How far the runs differ."""
        return f"±{50 * (self.high - self.low) / self.median:.1f} %" if self.median else ""


class Timer:
    """Times work on one device; on a CPU, where calls take milliseconds, in few runs."""

    def __init__(self, device: torch.device) -> None:
        self._on_device = device.type == "cuda"
        self._stream = torch.cuda.Stream(device) if self._on_device else None

    def calls(self, calls: Sequence[Call], repeats: int = REPEATS) -> Times:
        """Of one call. They run one after the other: on other data, the caches are cold."""
        if self._stream is None:
            return self._by_clock(calls[0], 2)
        self._stream.wait_stream(torch.cuda.current_stream())  # which makes the tensors
        with torch.inference_mode(), torch.cuda.stream(self._stream):
            for call in calls:
                call()
            self._stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            graph.capture_begin()
            try:
                for call in calls:
                    call()
            finally:
                graph.capture_end()
            times = self._between_events(graph.replay, repeats)
        return Times(*(part / len(calls) for part in (times.median, times.low, times.high)))

    def work(self, work: Call, repeats: int = REPEATS) -> Times:
        """Of work that is launched on the current stream."""
        if self._stream is None:
            return self._by_clock(work, 2)
        return self._between_events(work, repeats)

    def _by_clock(self, work: Call, repeats: int) -> Times:
        seconds = []
        with torch.inference_mode():
            for _ in range(repeats):
                start = time.perf_counter()
                work()
                seconds.append(time.perf_counter() - start)
        return Times.of(seconds)

    def _between_events(self, work: Call, repeats: int) -> Times:
        """The first run warms up."""
        work()
        pairs = []
        for _ in range(repeats):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            work()
            end.record()
            pairs.append((start, end))
        pairs[-1][1].synchronize()
        return Times.of([start.elapsed_time(end) / 1e3 for start, end in pairs])


@contextmanager
def poisoned() -> Iterator[None]:
    """Every tensor that is allocated in this block, and not yet written, holds NaN."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(mode=True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(mode=before)
