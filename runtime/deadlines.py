"""Who has waited or run for as long as its client allows."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from branchline.runtime.ranking import Ranking

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from branchline.runtime.request import Request


class Deadlines:
    """The requests that have a deadline and have not ended. It belongs to the engine thread."""

    def __init__(self, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._clock = clock
        self._live: Ranking[Request] = Ranking()

    def add(self, request: Request) -> None:
        """Watch a request that has just arrived, if it has a timeout."""
        if request.timeout is not None:
            end = request.arrived + request.timeout
            self._live.put(request, (int(end * 1e9),))

    def forget(self, request: Request) -> None:
        """It has ended."""
        self._live.put(request, None)

    def due(self) -> Iterator[Request]:
        """Those whose time is over; each is forgotten."""
        while len(self._live):
            deadline = self._live.least()
            if deadline is None or deadline[0] > self._clock():
                return
            request = self._live.first()
            assert request is not None, "it has a key"
            self.forget(request)
            yield request


def check_timeout(timeout: float | None) -> None:
    """Raise ValueError where it is no number of seconds to wait."""
    if timeout is not None and not (math.isfinite(timeout) and timeout > 0):
        raise ValueError(f"timeout={timeout}: must be a number of seconds above 0")
