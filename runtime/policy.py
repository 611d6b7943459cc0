"""Who runs next: longest cached prefix first, with a bound on how often a request is overtaken."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from branchline.runtime.request import State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from branchline.runtime.request import Request


class WaitingQueue:
    """The waiting requests: retracted ones, then those overtaken too often, then by match.

    Ties go by arrival. The bound counts later arrivals that were admitted first, so a cold request
    among endless hot ones waits for at most `overtake_bound` of them.
    """

    def __init__(self, match_length: Callable[[Request], int], overtake_bound: int) -> None:
        self._match_length = match_length
        self._bound = overtake_bound
        self._waiting: dict[Request, None] = {}
        self._arrivals = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._waiting)

    def add(self, request: Request) -> None:
        """Let a request wait; one that comes back keeps its order of arrival."""
        request.state = State.WAITING
        if request.arrival < 0:
            request.arrival = self._arrivals
            self._arrivals += 1
        request.known = np.array(request.tokens, dtype=np.int32)
        self._waiting[request] = None

    def discard(self, request: Request) -> None:
        """Forget a request, waiting or not."""
        self._waiting.pop(request, None)

    def in_order(self) -> list[tuple[Request, int]]:
        """The waiting requests in the order of admission, each with its cached prefix's length."""
        matched = [(request, self._match_length(request)) for request in self._waiting]
        return sorted(matched, key=lambda item: self._rank(*item))

    def must_be_next(self, request: Request) -> bool:
        """Whether nobody may pass this request any more."""
        return request.retracted or request.overtaken >= self._bound

    def admitted(self, request: Request) -> bool:
        """Take out a request that runs now; whoever came before it was overtaken.

        True: one of those must be next, so the order that was given no longer holds.
        """
        del self._waiting[request]
        overtaken = [other for other in self._waiting if other.arrival < request.arrival]
        for other in overtaken:
            other.overtaken += 1
        return any(other.overtaken == self._bound for other in overtaken)

    def _rank(self, request: Request, match: int) -> tuple[int, int, int]:
        if request.retracted:
            return (0, 0, request.arrival)
        if request.overtaken >= self._bound:
            return (1, 0, request.arrival)
        return (2, -match, request.arrival)
