"""Who runs next: longest cached prefix first, with a bound on how often a request is overtaken."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

import numpy as np

from branchline.runtime.request import State
from branchline.runtime.waiting_trie import WaitingTrie

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from branchline.runtime.request import Request

MOST_PASSED = 8  # requests that do not fit and are passed over in one step


class WaitingQueue:
    """The waiting requests: retracted ones, then those overtaken too often, then by match.

    Ties go by arrival. The bound counts later arrivals that were admitted first, so a cold request
    among endless hot ones waits for at most `overtake_bound` of them.

    Only the oldest request needs to be watched for that: whoever has overtaken a younger one has
    overtaken it as well. Retracted requests, which were away for a while, come before the bound.

    A step asks for the `head` again and again, and answers `admitted` or `pass_over`; it ends with
    `rejoin`. One that does not fit lets those after it try, up to `MOST_PASSED` such in a step. So
    what a step costs does not depend on how many wait.
    """

    def __init__(self, match_length: Callable[[Request], int], overtake_bound: int) -> None:
        self._match_length = match_length
        self._bound = overtake_bound
        self._trie = WaitingTrie(match_length)
        self._new: dict[Request, None] = {}  # never ran, in the order of arrival
        self._retracted: dict[Request, None] = {}  # at most as many as can run
        self._passed: list[Request] = []  # in this step: new ones that are out of the trie
        self._overtakers: list[int] = []  # a heap: arrivals, of whoever overtook the oldest new one
        self._arrivals = 0

    def __len__(self) -> int:
        return len(self._retracted) + len(self._new)

    def __iter__(self) -> Iterator[Request]:
        yield from self._retracted
        yield from self._new

    def add(self, request: Request) -> None:
        """Let a request wait; one that was retracted keeps its order of arrival."""
        request.state = State.WAITING
        if request.retracted:
            request.known = np.array(request.tokens, dtype=np.int32)
            self._retracted[request] = None
            return
        request.arrival = self._arrivals
        self._arrivals += 1
        self._new[request] = None
        self._trie.add(request)

    def discard(self, request: Request) -> None:
        """Forget a request, waiting or not."""
        if request in self._retracted:
            del self._retracted[request]
        elif request in self._new:
            del self._new[request]
            self._trie.remove(request)
            self._count_overtakers()

    def publish(self, request: Request, end: int) -> None:
        """Take note that the first `end` tokens of some request are in the tree now."""
        self._trie.publish(request, end)

    def head(self) -> tuple[Request, int] | None:
        """Who is next in this step, and the length of its match; None: nobody may be."""
        if self._retracted:
            request = min(self._retracted, key=lambda request: request.arrival)
        elif self._new and (oldest := next(iter(self._new))).overtaken >= self._bound:
            request = oldest
        else:
            return self._trie.first()
        return None if request in self._passed else (request, self._match_length(request))

    def admitted(self, request: Request) -> None:
        """Take out the head, which runs now; whoever came before it was overtaken."""
        self.discard(request)
        heapq.heappush(self._overtakers, request.arrival)
        self._count_overtakers()

    def pass_over(self, request: Request) -> bool:
        """Let others try in this step, as the head does not fit. False: nobody else may."""
        if request.retracted or request.overtaken >= self._bound:
            return False
        self._trie.remove(request)
        self._passed.append(request)
        return len(self._passed) < MOST_PASSED

    def rejoin(self) -> None:
        """End the step: who was passed over has its place again."""
        for request in self._passed:
            self._trie.add(request)
        self._passed.clear()

    def _count_overtakers(self) -> None:
        if not self._new:
            self._overtakers.clear()
            return
        oldest = next(iter(self._new))
        while self._overtakers and self._overtakers[0] < oldest.arrival:
            heapq.heappop(self._overtakers)
        oldest.overtaken = len(self._overtakers)
