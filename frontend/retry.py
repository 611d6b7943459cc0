"""When a request that failed is asked again."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from branchline.errors import InvalidRequest, RequestTimeout, RuntimeUnavailable


@dataclass(frozen=True, slots=True)
class Retry:
    """How often a request is tried, and how long to wait in between.

    What a stream has shown is never taken back, so a request of which something was shown is not
    tried again.

    Raises:
        InvalidRequest: a number is out of range.
    """

    attempts: int = 3  # in all; 1 never tries again
    delay: float = 0.5  # seconds before the second attempt
    factor: float = 2.0  # each later wait is this many times the one before
    max_delay: float = 30.0  # seconds
    jitter: float = 0.25  # the part of a wait that is drawn, so that many clients part
    on: tuple[type[Exception], ...] = (RuntimeUnavailable, RequestTimeout)  # what may pass

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise InvalidRequest(f"attempts={self.attempts}: must be at least 1")
        for name in ("delay", "factor", "max_delay"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise InvalidRequest(f"{name}={value}: must be at least 0")
        if not 0 <= self.jitter <= 1:
            raise InvalidRequest(f"jitter={self.jitter}: must be from 0 to 1")

    def wait(self, error: Exception, failed: int) -> float | None:
        """Seconds to wait after the `failed`-th attempt; None where the error is final."""
        if failed >= self.attempts or not isinstance(error, self.on):
            return None
        longest = min(self.max_delay, self.delay * self.factor ** (failed - 1))
        return longest * (1 - self.jitter * random.random())


NO_RETRY = Retry(attempts=1)
