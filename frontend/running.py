"""Runs the body of a program to its end, in a thread or on an event loop."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from branchline.aio import AsyncProgramState
from branchline.errors import RequestAborted
from branchline.executor import Executor
from branchline.handle import done
from branchline.nodes import Fail
from branchline.program_error import ProgramError, raise_site
from branchline.state import ProgramState

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from branchline.interpreter import Run

    Body = Callable[[ProgramState], Any]
    AsyncBody = Callable[[AsyncProgramState], Awaitable[Any]]


def run_body(executor: Executor, body: Body) -> BaseException | None:
    """Run a body to its end.

    An exception is returned, and ends the state as well, after what had been appended. One that
    ends the program and not only the body, such as Ctrl-C, aborts what it asked.
    """
    _end_with_run(executor)
    try:
        with executor.run.control.running():
            value = body(ProgramState(executor))
    except BaseException as error:  # noqa: BLE001 - the state's readers must learn of any end
        _fail(executor, error)
        return error
    executor.run.body.set_result(value)
    return None


async def run_async_body(executor: Executor, body: AsyncBody) -> None:
    """`run_body` for an async body. Cancelling it aborts what it asked.

    Raises:
        BaseException: what the body raises.
    """
    _end_with_run(executor)
    try:
        with executor.run.control.running():
            value = await body(AsyncProgramState(executor))
    except BaseException as error:
        _fail(executor, error)
        raise
    executor.run.body.set_result(value)


def run_item(run: Run, body: Body) -> ProgramState:
    """One item of a batch: its state, when everything appended to it has happened."""
    executor = Executor(run)
    run_body(executor, body)
    executor.tail().result()
    return ProgramState(executor)


async def run_async_item(run: Run, body: AsyncBody) -> ProgramState:
    """`run_item` for an async body."""
    executor = Executor(run)
    with suppress(Exception):  # the state has it
        await run_async_body(executor, body)
    await done(executor.tail())
    return ProgramState(executor)


async def run_awaited(executor: Executor, body: AsyncBody) -> ProgramState:
    """The state of an async program, when everything has happened; raises what its body raises."""
    await run_async_body(executor, body)
    try:
        await done(executor.settled(outside=False))
    except asyncio.CancelledError:
        executor.cancel()
        raise
    return ProgramState(executor)


def _end_with_run(executor: Executor) -> None:
    """Tell the backend when everything has happened."""
    executor.settled(outside=True).add_done_callback(lambda _: executor.end())


def _fail(executor: Executor, error: BaseException) -> None:
    if not isinstance(error, Exception):
        executor.cancel()
    failure = _body_failure(executor, error)
    executor.submit(Fail(failure))
    executor.run.body.set_exception(failure)


def _body_failure(executor: Executor, error: BaseException) -> ProgramError:
    if isinstance(error, ProgramError):
        return error
    site = raise_site(error.__traceback__)
    if isinstance(error, asyncio.CancelledError):
        aborted = RequestAborted("the program was cancelled")
        aborted.__cause__ = error
        error = aborted
    return ProgramError(error, program=executor.run.program, site=site)
