"""What the counters of the last seconds say: rates, the hit rate, latencies."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from branchline.runtime_info import RuntimeInfo

WINDOW = 30.0  # seconds
KEPT = 60  # points of a curve


@dataclass(frozen=True, slots=True)
class Rates:
    """Over the last seconds, at a first look since the start; None where nothing happened."""

    written: float  # tokens per second, since the last look
    hit_rate: float | None  # of the prompt tokens
    ttft: tuple[float, float] | None  # seconds: median and 95th percentile
    tpot: tuple[float, float] | None


class Past:
    """The counters of the last seconds, and how much was written at each look."""

    def __init__(self) -> None:
        self.written: deque[float] = deque(maxlen=KEPT)
        self._seen: deque[RuntimeInfo] = deque()

    def take(self, info: RuntimeInfo) -> Rates:
        """The rates at this look."""
        if self._seen and info.uptime < self._seen[-1].uptime:  # it has started anew
            self._seen.clear()
        last = self._seen[-1] if self._seen else None
        self._seen.append(info)
        while self._seen[0].uptime < info.uptime - WINDOW:
            self._seen.popleft()
        self.written.append(_speed(last, info))
        first = None if last is None else self._seen[0]
        return Rates(
            self.written[-1],
            _hit_rate(first, info),
            _latency(first, info, "ttft"),
            _latency(first, info, "tpot"),
        )


def _speed(last: RuntimeInfo | None, info: RuntimeInfo) -> float:
    if last is None or info.uptime <= last.uptime:
        return info.tokens_per_second
    return (info.generated_tokens - last.generated_tokens) / (info.uptime - last.uptime)


def _hit_rate(first: RuntimeInfo | None, info: RuntimeInfo) -> float | None:
    prompt, cached = info.prompt_tokens, info.cached_prompt_tokens
    if first is not None:
        prompt, cached = prompt - first.prompt_tokens, cached - first.cached_prompt_tokens
    return cached / prompt if prompt else None


def _latency(first: RuntimeInfo | None, info: RuntimeInfo, name: str) -> tuple[float, float] | None:
    """Median and 95th percentile of the requests that ended in between."""
    now = info.histograms.get(name)
    if now is None:
        return None
    then = None if first is None else first.histograms.get(name)
    before = then.counts if then else (0,) * len(now.counts)
    counts = [new - old for new, old in zip(now.counts, before, strict=True)]
    if not any(counts):
        return None
    return quantile(now.bounds, counts, 0.5), quantile(now.bounds, counts, 0.95)


def quantile(bounds: Sequence[float], counts: Sequence[int], share: float) -> float:
    """The value below which a share of a histogram lies, between its bounds by interpolation.

    What lies beyond the last bound counts as the last bound.
    """
    wanted, below, lower = share * sum(counts), 0, 0.0
    for bound, count in zip(bounds, counts, strict=False):  # one count more: the rest's
        if count and below + count >= wanted:
            return lower + (bound - lower) * (wanted - below) / count
        below, lower = below + count, bound
    return lower
