"""`function` and what it makes of one: a program that can be run, once or on many inputs."""

from __future__ import annotations

import contextvars
import functools
import inspect
import threading
import warnings
from typing import TYPE_CHECKING, Any, Literal, overload

from branchline.async_program import AsyncProgram
from branchline.batch import completed, in_order, pool_size
from branchline.declared import Declared
from branchline.executor import Executor
from branchline.running import run_body, run_item
from branchline.settings import RUN_SETTINGS
from branchline.state import ProgramState

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from branchline.backend import Backend
    from branchline.declared import Item


class Program(Declared):
    """A program: a function whose first parameter is `s`, the state it appends to.

    It may be a method: `self` comes before `s` and is filled when the program is taken from an
    instance.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> ProgramState:
        """`run`."""
        return self.run(*args, **kwargs)

    def run(self, *args: Any, **kwargs: Any) -> ProgramState:
        """Run the body and return its state, without waiting for what the model still writes.

        The program's arguments come with these settings, where the program has no parameter of that
        name: backend; stream (the body runs in a thread of its own, and the text can be read as it
        comes); seed (makes every draw repeat, forks differ); model_defaults (start from what the
        model's authors recommend); timeout (seconds from now, after which nothing more is waited
        for); retry (a `Retry`); and for every gen that does not say otherwise max_new_tokens
        (128), n (1), stop, stop_token_ids, temperature (1.0), top_p, top_k, min_p,
        frequency_penalty, presence_penalty, repetition_penalty, logit_bias, ignore_eos,
        return_logprob, logprob_start_len, top_logprobs_num.

        Raises:
            TypeError: the arguments are not the program's.
            InvalidRequest: a setting breaks a rule, or there is no backend.
            Exception: whatever the body raises; if it streams, reading the state raises it instead.
        """
        run, body = self._prepare(args, kwargs)
        executor = Executor(run)
        if run.stream:
            context = contextvars.copy_context()
            threading.Thread(
                target=context.run,
                args=(run_body, executor, body),
                name=f"branchline-{self.__name__}",
                daemon=True,
            ).start()
            return ProgramState(executor, outside=True)
        error = run_body(executor, body)
        if error is not None:
            raise error
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
        """Run the program on each item and wait for what the model writes.

        An item that fails disturbs no other: reading its state raises its `ProgramError`. Whoever
        leaves early aborts what is running.

        Args:
            batch_kwargs: the items, each a dict or a sequence of the program's arguments; not
                changed.
            backend: what answers; the default one if None.
            seed: item i runs with a seed derived from this one and i.
            num_threads: programs that run at the same time.
            progress_bar: show one.
            generator_style: return an iterator of the states in the order of the items, each as
                soon as those before it are done.
            as_completed: return an iterator of (index, state) instead, in the order of their ends.
            settings: model_defaults, retry, timeout (of each item, from its start), and those that
                `run` has for every gen.

        Returns:
            The states, in the order of the items.

        Raises:
            TypeError: an item's arguments are not the program's; nothing has run then.
            InvalidRequest: a setting breaks a rule, or there is no backend.
        """
        prepared = self._prepare_batch(batch_kwargs, backend, seed, settings)
        jobs = [functools.partial(run_item, run, body) for run, body in prepared]
        results = completed(
            jobs,
            pool_size(num_threads, len(jobs)),
            progress_bar=progress_bar,
            abandon=lambda index: prepared[index][0].control.cancel(),
        )
        if as_completed:
            return results
        states = in_order(results)
        return states if generator_style else list(states)


@overload
def function(func: Callable[..., Awaitable[Any]]) -> AsyncProgram: ...
@overload
def function(func: Callable[..., Any]) -> Program: ...
@overload
def function(func: None = None) -> Callable[[Callable[..., Any]], Any]: ...
def function(func: Callable[..., Any] | None = None) -> Any:
    """Make a program of a function whose first parameter is `s`; `@function` or `@function()`.

    Of an `async def` it makes an `AsyncProgram`.

    Raises:
        TypeError: the first parameter has another name, or it is a generator.
    """
    if func is None:
        return function
    _check_parameters(func)
    return AsyncProgram(func) if inspect.iscoroutinefunction(func) else Program(func)


def _check_parameters(func: Callable[..., Any]) -> None:
    """Refuse what cannot be a program, and say where a parameter takes the place of a setting."""
    if inspect.isgeneratorfunction(func) or inspect.isasyncgenfunction(func):
        raise TypeError(f"{func.__name__} has a yield; a program appends to s and returns")
    names = list(inspect.signature(func).parameters)
    if names[:1] != ["s"] and names[:2] not in (["self", "s"], ["cls", "s"]):
        raise TypeError(f"the first parameter of the program {func.__name__} must be named s")
    for name in RUN_SETTINGS.intersection(names):
        warnings.warn(
            f"{func.__name__} has a parameter named {name}, which is also a setting of run(): "
            "the program gets it",
            stacklevel=3,
        )
