"""Questions for the runtime, of one or several prompts, that end when nobody waits for them."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.requests import ClientDisconnect

from branchline.errors import BranchlineError
from branchline.gateway.errors import ApiError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Coroutine, Iterator, Sequence

    from starlette.types import Receive

    from branchline.backend import Backend
    from branchline.gateway.settings import Settings
    from branchline.protocol import Generate, Update

T = TypeVar("T")


class Gate:
    """Counts the prompts that wait or run for the gateway's clients, and bounds them."""

    def __init__(self, settings: Settings) -> None:
        self._most = settings.max_open
        self._retry_after = settings.retry_after
        self.open = 0

    @contextmanager
    def entered(self, prompts: int) -> Iterator[None]:
        """A block in which they are open. Raises a 429 when that would be too many."""
        if self.open + prompts > self._most:
            raise ApiError(
                429,
                f"{self.open + prompts} prompts would be open: at most {self._most}; try later",
                kind="rate_limit_error",
                code="overloaded",
                headers={"Retry-After": str(self._retry_after)},
            )
        self.open += prompts
        try:
            yield
        finally:
            self.open -= prompts


async def whole(backend: Backend, requests: Sequence[Generate]) -> list[Update]:
    """Every choice of every request, each one update; those of the first request come first.

    The first that fails ends them all.
    """
    tasks = [asyncio.create_task(_choices(backend, request)) for request in requests]
    try:
        answers = await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
    return [update for choices in answers for update in choices]


async def _choices(backend: Backend, request: Generate) -> list[Update]:
    assert not request.stream, "one update for each choice"
    choices: dict[int, Update] = {}
    async with aclosing(backend.generate(request)) as updates:  # type: ignore[type-var]
        async for update in updates:
            choices[update.index] = update
    return [choices[index] for index in sorted(choices)]


async def streamed(
    backend: Backend, requests: Sequence[Generate]
) -> AsyncGenerator[tuple[int, Update], None]:
    """The updates of all requests as they come, each with the number of its choice."""
    if len(requests) == 1:  # nothing to merge
        async with aclosing(backend.generate(requests[0])) as updates:  # type: ignore[type-var]
            async for update in updates:
                yield update.index, update
        return
    news: asyncio.Queue[tuple[int, Update] | BranchlineError | None] = asyncio.Queue()
    firsts = itertools.accumulate((request.params.n for request in requests), initial=0)
    tasks = [
        asyncio.create_task(_pump(backend, request, first, news))
        for request, first in zip(requests, firsts, strict=False)
    ]
    try:
        unfinished = len(tasks)
        while unfinished:
            one = await news.get()
            if isinstance(one, BranchlineError):
                raise one
            if one is None:
                unfinished -= 1
            else:
                yield one
    finally:
        for task in tasks:
            task.cancel()


async def _pump(
    backend: Backend,
    request: Generate,
    first: int,
    news: asyncio.Queue[tuple[int, Update] | BranchlineError | None],
) -> None:
    try:
        async with aclosing(backend.generate(request)) as updates:  # type: ignore[type-var]
            async for update in updates:
                news.put_nowait((first + update.index, update))
    except BranchlineError as error:
        news.put_nowait(error)
    else:
        news.put_nowait(None)


async def while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """What some work brings. It is cancelled, and ClientDisconnect raised, when the client goes."""
    task = asyncio.create_task(work)
    gone = asyncio.create_task(_disconnect(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
