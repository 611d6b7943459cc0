"""The one background event loop that serves every state, fork and connection of a process."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from concurrent.futures import Future

T = TypeVar("T")

_lock = threading.RLock()  # the garbage collector may come here from inside
_loop: asyncio.AbstractEventLoop | None = None


def background_loop() -> asyncio.AbstractEventLoop:
    """The process's background loop, started on a daemon thread at the first call."""
    global _loop  # noqa: PLW0603 - one loop for the process is the point
    if _loop is not None:  # without the lock: a finalizer may run in a thread that holds it
        return _loop
    with _lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_loop.run_forever, name="branchline-loop", daemon=True).start()
        return _loop


def submit(coroutine: Coroutine[Any, Any, T]) -> Future[T]:
    """Start a coroutine on the background loop; wait for its future on any other thread."""
    return asyncio.run_coroutine_threadsafe(coroutine, background_loop())


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the background loop and wait for it; never call this on that loop.

    Who stops waiting, by Ctrl-C, cancels it.
    """
    assert threading.current_thread().name != "branchline-loop", "would wait for itself"
    future = submit(coroutine)
    try:
        return future.result()
    finally:
        future.cancel()  # does nothing to one that is done
