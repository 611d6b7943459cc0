"""Reading a state while it is written, from a thread or from an event loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from branchline.generation import Choice

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from concurrent.futures import Future

    from branchline.executor import Executor
    from branchline.snapshot import Snapshot
    from branchline.variable import Variable


def text_chunks(executor: Executor, end: Future[Snapshot]) -> Iterator[str]:
    """The text of a state up to `end`, as it comes; in one piece if the run does not stream."""
    yield from executor.shown.follow(end)
    yield from _rest(executor, end.result())


async def async_text_chunks(executor: Executor, end: Future[Snapshot]) -> AsyncIterator[str]:
    """`text_chunks` for an event loop."""
    async for chunk in executor.shown.afollow(end):
        yield chunk
    for chunk in _rest(executor, end.result()):
        yield chunk


def _rest(executor: Executor, snapshot: Snapshot) -> Iterator[str]:
    if snapshot.error is not None:
        raise snapshot.error.with_traceback(None)
    if not executor.run.stream:
        yield snapshot.text


def variable_chunks(variable: Variable) -> Iterator[Any]:
    """The text of a variable as it comes; in one piece if it does not stream."""
    streamed = False
    for update in variable.updates.follow(variable.filled):
        streamed = True
        if update.text:
            yield update.text
    if not streamed:
        yield variable.whole()
    variable.get()


async def async_variable_chunks(variable: Variable) -> AsyncIterator[Any]:
    """`variable_chunks` for an event loop."""
    async for chunk, _ in async_variable_chunks_with_meta(variable):
        if chunk:
            yield chunk


async def async_variable_chunks_with_meta(variable: Variable) -> AsyncIterator[tuple[Any, Any]]:
    """Each piece of text with what is known about it.

    What came without text goes along with the next piece; the last pair has the finish, and perhaps
    no text.
    """
    streamed = False
    unseen = Choice()
    async for update in variable.updates.afollow(variable.filled):
        streamed = True
        unseen.take(update)
        if update.text or update.finish is not None:
            yield unseen.text, unseen.meta()
            unseen = Choice()
    if not streamed:
        yield variable.whole(), variable.meta()
    variable.get()
