"""What is done with a state from outside its program: wait for it, cancel it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Generator
    from concurrent.futures import Future
    from typing import Self

    from branchline.executor import Executor


class Handle:
    """A state that can be awaited, cancelled, and left.

    `await state` waits until everything appended to it and to its branches has happened, on any
    event loop, and gives the state. A `with` block on a state cancels, at its end, what has not
    happened yet.
    """

    def __init__(self, executor: Executor, *, outside: bool = False) -> None:
        self._executor = executor
        self._outside = outside
        executor.held_by(self)

    @property
    def vars(self) -> dict[str, Any]:
        """Every variable that has a value now, by its name; never waits."""
        self._executor.tail()
        named = self._executor.variables.copy()
        return {name: variable.get() for name, variable in named.items() if variable.ready}

    def cancel(self) -> None:
        """Abort what this state and the branches below it ask the model, now and from here on.

        What they had asked raises `ProgramError`, with `RequestAborted` as its cause, where it is
        read. Cancelling the state of an async program ends its body as well.
        """
        self._executor.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._executor.settled(outside=self._outside).done():
            self.cancel()

    def __await__(self) -> Generator[Any, None, Any]:
        return self._finished().__await__()

    async def _finished(self) -> Any:
        await done(self._executor.settled(outside=self._outside))
        return self


async def done(future: Future[Any]) -> None:
    """Wait until a future of another thread is done, on any event loop.

    It raises nothing of the future's, and being cancelled here does not cancel the future.
    """
    loop = asyncio.get_running_loop()
    waiter = loop.create_future()

    def wake() -> None:
        if not waiter.done():
            waiter.set_result(None)

    def notify(_: object) -> None:
        if not loop.is_closed():  # nobody waits there any more
            loop.call_soon_threadsafe(wake)

    future.add_done_callback(notify)
    await waiter
