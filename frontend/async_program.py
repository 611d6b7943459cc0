"""Programs with an `async def` body: many at a time on one event loop, without threads."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, overload

from branchline.aio import AsyncProgramState
from branchline.batch import completed_async, in_order, pool_size
from branchline.declared import Declared
from branchline.executor import Executor
from branchline.running import run_async_body, run_async_item, run_awaited
from branchline.state import ProgramState

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator, Sequence

    from branchline.backend import Backend
    from branchline.declared import Item
    from branchline.running import AsyncBody


class AsyncProgram(Declared):
    """An `async def` whose first parameter is `s`, an `AsyncProgramState`.

    ::

        state = await program(question)                                  # on an event loop
        states = await asyncio.gather(*(program(q) for q in questions))  # many at a time
        state = program.run(question)                                    # from ordinary code

    The state that comes back is a `ProgramState`: everything has happened, `state["x"]` is there.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, ProgramState]:
        """A coroutine that runs the program and gives its state, when everything has happened.

        Arguments and settings are those of `Program.run`. It raises what the body raises;
        cancelling it aborts what the program has asked.

        Raises:
            TypeError: the arguments are not the program's.
            InvalidRequest: a setting breaks a rule, or there is no backend.
        """
        run, body = self._prepare(args, kwargs)
        return run_awaited(Executor(run), body)

    def start(self, *args: Any, **kwargs: Any) -> AsyncProgramState:
        """Start the program on the running event loop and return its state, seen from outside.

        `async for text in state["x"]` follows a variable, `await state` waits for the end;
        `state.cancel()` ends it. Arguments and settings are those of `Program.run`.

        Raises:
            RuntimeError: no event loop is running.
        """
        loop = asyncio.get_running_loop()
        run, body = self._prepare(args, kwargs)
        executor = Executor(run)
        task = loop.create_task(run_async_body(executor, body), name=f"branchline-{self.__name__}")
        task.add_done_callback(_retrieve)
        run.control.owns_body(lambda: loop.call_soon_threadsafe(task.cancel))
        return AsyncProgramState(executor, outside=True)

    def run(self, *args: Any, **kwargs: Any) -> ProgramState:
        """`Program.run` for ordinary code: the body runs on an event loop of its own.

        Raises:
            RuntimeError: an event loop is running in this thread: use `await program(…)`.
            Exception: what `Program.run` raises.
        """
        _refuse_loop(f"await {self.__name__}(…)")
        run, body = self._prepare(args, kwargs)
        executor = Executor(run)
        if run.stream:
            context = contextvars.copy_context()
            threading.Thread(
                target=context.run,
                args=(_run_apart, executor, body),
                name=f"branchline-{self.__name__}",
                daemon=True,
            ).start()
            return ProgramState(executor, outside=True)
        asyncio.run(run_async_body(executor, body))
        return ProgramState(executor)

    @overload
    def run_batch(
        self,
        batch_kwargs: Sequence[Item],
        *,
        generator_style: Literal[False] = ...,
        as_completed: Literal[False] = ...,
        **options: Any,
    ) -> list[ProgramState]: ...
    @overload
    def run_batch(self, batch_kwargs: Sequence[Item], **options: Any) -> Iterator[Any]: ...
    def run_batch(
        self,
        batch_kwargs: Sequence[Item],
        *,
        backend: Backend | None = None,
        seed: int | None = None,
        num_threads: int | Literal["auto"] = "auto",
        progress_bar: bool = False,
        generator_style: bool = False,
        as_completed: bool = False,
        **settings: Any,
    ) -> list[ProgramState] | Iterator[Any]:
        """`Program.run_batch` for ordinary code, on one thread however many run at the same time.

        Args:
            batch_kwargs: as there, like all others.
            backend: what answers.
            seed: of the draws.
            num_threads: programs that run at the same time; none of them has a thread.
            progress_bar: show one.
            generator_style: return an iterator of the states.
            as_completed: return an iterator of (index, state).
            settings: of the run.

        Raises:
            RuntimeError: an event loop is running in this thread: use `asyncio.gather`.
            Exception: what `Program.run_batch` raises.
        """
        _refuse_loop(f"await asyncio.gather(*({self.__name__}(…) for …))")
        prepared = self._prepare_batch(batch_kwargs, backend, seed, settings)
        jobs = [functools.partial(run_async_item, run, body) for run, body in prepared]
        results = completed_async(
            jobs, pool_size(num_threads, len(jobs)), progress_bar=progress_bar
        )
        if as_completed:
            return results
        states = in_order(results)
        return states if generator_style else list(states)


def _run_apart(executor: Executor, body: AsyncBody) -> None:
    with suppress(Exception):  # the state has it
        asyncio.run(run_async_body(executor, body))


def _retrieve(task: asyncio.Task[None]) -> None:
    """Take the exception, which the state has, so that it does not count as forgotten."""
    if not task.cancelled():
        task.exception()


def _refuse_loop(instead: str) -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError(f"an event loop is running in this thread; write {instead}")
