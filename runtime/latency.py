"""How long requests took, as histograms, and how many were as fast as they should be."""

from __future__ import annotations

import time
from bisect import bisect_left
from typing import TYPE_CHECKING

from branchline.runtime_info import Histogram

if TYPE_CHECKING:
    from collections.abc import Callable

    from branchline.runtime.request import Request

_WAITS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0
)  # fmt: skip
_TOKENS = (
    0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2,
    0.3, 0.5, 1.0,
)  # fmt: skip
BOUNDS = {"queue": _WAITS, "ttft": _WAITS, "tpot": _TOKENS, "e2e": _WAITS}  # seconds


class _Counts:
    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def histogram(self) -> Histogram:
        return Histogram(self._bounds, tuple(self._counts), self._sum)


class Latencies:
    """Seconds of requests: in the queue, to the first token, for each later one, and in all.

    Counted for requests that finished, but the queue for all that were admitted; of a prompt that
    is only computed there are no tokens to time. One is good that keeps both targets; 0 is none.
    """

    def __init__(
        self,
        target_ttft: float = 0.0,
        target_tpot: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.target_ttft = target_ttft
        self.target_tpot = target_tpot
        self.good = 0
        self._clock = clock
        self._counts = {name: _Counts(bounds) for name, bounds in BOUNDS.items()}

    def said(self, request: Request) -> None:
        """Something of a request is about to be sent."""
        if request.first_token < 0 and request.output_len:
            request.first_token = self._clock()

    def ended(self, request: Request, *, finished: bool) -> None:
        """Count a request that has ended."""
        now = self._clock()
        if request.admitted >= 0:
            self._counts["queue"].observe(request.admitted - request.arrived)
        if not finished:
            return
        whole = now - request.arrived
        self._counts["e2e"].observe(whole)
        ttft, tpot = whole, 0.0
        if request.first_token >= 0:
            ttft = request.first_token - request.arrived
            self._counts["ttft"].observe(ttft)
            if request.output_len > 1:
                tpot = (now - request.first_token) / (request.output_len - 1)
                self._counts["tpot"].observe(tpot)
        self.good += _keeps(ttft, self.target_ttft) and _keeps(tpot, self.target_tpot)

    def histograms(self) -> dict[str, Histogram]:
        """The counts so far."""
        return {name: counts.histogram() for name, counts in self._counts.items()}


def _keeps(seconds: float, target: float) -> bool:
    return not target or seconds <= target
