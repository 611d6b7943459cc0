"""What bounds a run from outside: its deadline, and being cancelled, whole or by branches."""

from __future__ import annotations

import asyncio
import math
import threading
import time
import weakref
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from branchline import eventloop
from branchline.errors import InvalidRequest, RequestAborted, RequestTimeout

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

# Where a state stands: (ordinal of the fork, index of the branch) of every fork above it.
Branch = tuple[int, ...]

# Of the run whose body this thread or task is in.
_running: ContextVar[Control | None] = ContextVar("branchline_running", default=None)


class Control:
    """The requests of one run that are alive, and why there may be no more of them.

    A request is interrupted only while it is asked, inside `guard`; the chain of steps it belongs
    to goes on with the error, so that no reader is left waiting. A run that another run's body
    begins ends with that one.
    """

    def __init__(self, timeout: float | None = None) -> None:
        self._timeout = check_timeout(timeout)
        self._deadline: float | None = None  # on the clock of event loops
        self._begun_by = _running.get()
        self._begun: weakref.WeakSet[Control] = weakref.WeakSet()
        self._lock = threading.Lock()  # of what has begun
        self._cancelled: set[Branch] = set()  # with all branches below
        self._asking: dict[asyncio.Timeout, Branch] = {}
        self._end_body: Callable[[], object] | None = None

    def owns_body(self, end: Callable[[], object]) -> None:
        """Cancelling the whole run calls this, to end a body that need not be asking anything."""
        self._end_body = end

    @contextmanager
    def running(self) -> Iterator[None]:
        """Around the run's body; its timeout counts from the beginning of this."""
        if self._timeout is not None:
            self._deadline = time.monotonic() + self._timeout
        if self._begun_by is not None:
            self._begun_by._begin(self)
        token = _running.set(self)
        try:
            yield
        finally:
            _running.reset(token)

    def cancel(self, branch: Branch = ()) -> None:
        """Interrupt what a branch and those below it ask, and refuse what they will; any thread."""
        eventloop.background_loop().call_soon_threadsafe(self._cancel, branch)

    @asynccontextmanager
    async def guard(self, branch: Branch) -> AsyncIterator[None]:
        """Around a request of a branch, on the background loop.

        Raises:
            RequestAborted: the branch is or was cancelled.
            RequestTimeout: the run's time is over.
        """
        self._refuse(branch)
        clock = asyncio.timeout_at(self._deadline)
        self._asking[clock] = branch
        try:
            async with clock:
                yield
        except TimeoutError:
            if not clock.expired():
                raise
            self._refuse(branch)
            raise RequestTimeout(f"the run took longer than its timeout={self._timeout}") from None
        finally:
            del self._asking[clock]

    def _begin(self, inner: Control) -> None:
        if self._deadline is not None and (inner._deadline or math.inf) > self._deadline:
            inner._deadline, inner._timeout = self._deadline, self._timeout
        with self._lock:
            self._begun.add(inner)
        if () in self._cancelled:
            inner.cancel()

    def _cancel(self, branch: Branch) -> None:
        self._cancelled.add(branch)
        if not branch:
            with self._lock:
                begun = list(self._begun)
            for inner in begun:
                inner._cancel(())
            if self._end_body is not None:
                self._end_body()
        for clock, asking in self._asking.items():
            if asking[: len(branch)] == branch and not clock.expired():
                clock.reschedule(0)

    def _refuse(self, branch: Branch) -> None:
        if any(branch[: len(cancelled)] == cancelled for cancelled in self._cancelled):
            raise RequestAborted("the program, or this branch of it, was cancelled")


@asynccontextmanager
async def limit(timeout: float | None) -> AsyncIterator[None]:
    """Around one attempt at a request.

    Raises:
        RequestTimeout: it took longer.
    """
    clock = asyncio.timeout(timeout)
    try:
        async with clock:
            yield
    except TimeoutError:
        if not clock.expired():
            raise
        raise RequestTimeout(f"no complete answer within timeout={timeout}") from None


def check_timeout(timeout: float | None) -> float | None:
    """The timeout.

    Raises:
        InvalidRequest: not a number of seconds above 0.
    """
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        raise InvalidRequest(f"timeout={timeout!r}: must be a number of seconds or None")
    if not (math.isfinite(timeout) and timeout > 0):
        raise InvalidRequest(f"timeout={timeout}: must be above 0")
    return timeout
