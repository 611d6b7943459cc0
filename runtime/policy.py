"""Who runs next: highest priority, then longest cached prefix, with a bound on being overtaken."""

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
MOST_PRIORITY = 100  # and the least is as far below 0


class _Level:
    """The requests of one priority that never ran, in the order of arrival; it is never empty."""

    def __init__(self) -> None:
        self.requests: dict[Request, None] = {}
        self._overtakers: list[int] = []  # a heap: arrivals, of whoever overtook the oldest

    @property
    def oldest(self) -> Request:
        return next(iter(self.requests))

    def admitted(self, request: Request) -> None:
        """One of this priority runs now, and is not here any more."""
        heapq.heappush(self._overtakers, request.arrival)
        self.count()

    def count(self) -> None:
        """Who the oldest is may have changed."""
        while self._overtakers and self._overtakers[0] < self.oldest.arrival:
            heapq.heappop(self._overtakers)
        self.oldest.overtaken = len(self._overtakers)


class WaitingQueue:
    """The waiting requests: by priority, then retracted ones, those overtaken too often, by match.

    Ties go by arrival. A request is admitted only when none of a higher priority waits: so a level
    may starve, for as long as higher ones ask for all there is. Within a level nobody does. The
    bound counts later arrivals of the level that were admitted first, so a cold request among
    endless hot ones waits for at most `overtake_bound` of them.

    Only the oldest request of a level needs to be watched for that: whoever has overtaken a younger
    one has overtaken it as well. Retracted requests, which were away for a while, come before the
    bound.

    A step asks for the `head` again and again, and answers `admitted` or `pass_over`; it ends with
    `rejoin`. One that does not fit lets those after it in its level try, up to `MOST_PASSED` such
    in a step. So what a step costs does not depend on how many wait.
    """

    def __init__(self, match_length: Callable[[Request], int], overtake_bound: int) -> None:
        self._match_length = match_length
        self._bound = overtake_bound
        self._trie = WaitingTrie(match_length)
        self._levels: dict[int, _Level] = {}  # by priority; none is empty
        self._retracted: dict[Request, None] = {}  # at most as many as can run
        self._passed: list[Request] = []  # in this step: new ones that are out of the trie
        self._arrivals = 0

    def __len__(self) -> int:
        return len(self._retracted) + sum(len(level.requests) for level in self._levels.values())

    def __iter__(self) -> Iterator[Request]:
        yield from self._retracted
        for priority in sorted(self._levels, reverse=True):
            yield from self._levels[priority].requests

    def add(self, request: Request) -> None:
        """Let a request wait; one that was retracted keeps its order of arrival."""
        request.state = State.WAITING
        if request.retracted:
            request.known = np.array(request.tokens, dtype=np.int32)
            self._retracted[request] = None
            return
        request.arrival = self._arrivals
        self._arrivals += 1
        self._levels.setdefault(request.priority, _Level()).requests[request] = None
        self._trie.add(request)

    def discard(self, request: Request) -> None:
        """Forget a request, waiting or not."""
        if request in self._retracted:
            del self._retracted[request]
            return
        level = self._levels.get(request.priority)
        if level is None or request not in level.requests:
            return
        self._trie.remove(request)
        del level.requests[request]
        if level.requests:
            level.count()
        else:
            del self._levels[request.priority]

    def publish(self, request: Request, end: int) -> None:
        """Take note that the first `end` tokens of some request are in the tree now."""
        self._trie.publish(request, end)

    def head(self) -> tuple[Request, int] | None:
        """Who is next in this step, and the length of its match; None: nobody may be."""
        top = max(self._levels, default=-MOST_PRIORITY)
        if self._retracted:
            request = min(self._retracted, key=_turn)
            if request.priority >= top:
                return request, self._match_length(request)
        if not self._levels:
            return None
        oldest = self._levels[top].oldest
        if oldest.overtaken >= self._bound:
            return None if oldest in self._passed else (oldest, self._match_length(oldest))
        first = self._trie.first()
        return None if first is None or first[0].priority < top else first

    def admitted(self, request: Request) -> None:
        """Take out the head, which runs now; whoever of its level came before it was overtaken."""
        self.discard(request)
        level = self._levels.get(request.priority)
        if level is not None:
            level.admitted(request)

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


def _turn(request: Request) -> tuple[int, int]:
    return -request.priority, request.arrival
