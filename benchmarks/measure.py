"""A backend that times every generation that passes through it, and the line that reports them."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from branchline.backend import Backend
    from branchline.protocol import Generate, Update


@dataclass
class Timings:
    """What a workload took, one entry a request; seconds."""

    first_token: list[float] = field(default_factory=list)
    per_token: list[float] = field(default_factory=list)  # after the first
    tokens: int = 0

    def add(self, first_token: float, whole: float, tokens: int) -> None:
        """Enter one request."""
        self.first_token.append(first_token)
        self.per_token.append((whole - first_token) / max(1, tokens - 1))
        self.tokens += tokens

    def line(self, workload: str, seconds: float) -> str:
        """The workload's result as one line of JSON."""
        requests = len(self.first_token)
        return json.dumps(
            {
                "workload": workload,
                "seconds": round(seconds, 2),
                "requests": requests,
                "out_tok": self.tokens,
                "out_tok_s": round(self.tokens / seconds, 1),
                "req_s": round(requests / seconds, 2),
                "ttft_p50": round(percentile(self.first_token, 0.50), 3),
                "ttft_p99": round(percentile(self.first_token, 0.99), 3),
                "tpot_p50_ms": round(1e3 * percentile(self.per_token, 0.50), 1),
                "tpot_p99_ms": round(1e3 * percentile(self.per_token, 0.99), 1),
            }
        )


def percentile(values: list[float], fraction: float) -> float:
    """The value below which `fraction` of the values lie, without interpolation."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(fraction * len(ordered)))]


class Timed:
    """A backend that passes everything on to `inner` and times each generation.

    It asks every generation to stream, so that its first token shows.
    """

    def __init__(self, inner: Backend) -> None:
        self._inner = inner
        self.timings = Timings()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def generate(self, request: Generate) -> AsyncIterator[Update]:
        """The inner backend's updates; the request is entered in `timings` with its last one."""
        start = time.perf_counter()
        first, tokens = 0.0, 0
        async for update in self._inner.generate(replace(request, stream=True)):
            first = first or time.perf_counter() - start
            tokens += len(update.ids)
            if update.finish is not None:
                self.timings.add(first, time.perf_counter() - start, tokens)
            yield update
