"""`function` and what it makes of one: a program that can be run, once or on many inputs."""

from __future__ import annotations

import contextvars
import functools
import inspect
import threading
import warnings
from collections.abc import Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Literal, overload

from branchline.batch import completed, in_order, pool_size
from branchline.default_backend import resolve_backend
from branchline.executor import Executor
from branchline.interpreter import Run
from branchline.nodes import Fail
from branchline.program_error import ProgramError, raise_site
from branchline.roles import PLAIN_TEMPLATE
from branchline.sampling_params import SamplingParams
from branchline.seeds import derive_seed
from branchline.settings import RUN_SETTINGS, SAMPLING_SETTINGS, sampling_changes, with_changes
from branchline.state import ProgramState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from branchline.backend import Backend

    Item = Mapping[str, Any] | Sequence[Any]


class Program:
    """A function whose first parameter is `s`, the state it appends to.

    It may be a method: `self` comes before `s` and is filled when the program is taken from an
    instance.
    """

    __name__: str

    def __init__(
        self, func: Callable[..., Any], bound: Mapping[str, Any] | None = None, *receiver: object
    ) -> None:
        functools.update_wrapper(self, func)
        self.func = func
        self._bound = dict(bound or {})
        self._receiver = receiver
        self._signature = inspect.signature(func)

    def __get__(self, instance: object, owner: type | None = None) -> Program:
        if instance is None or self._receiver or next(iter(self._signature.parameters)) == "s":
            return self
        return Program(self.func, self._bound, instance)

    def __repr__(self) -> str:
        return f"<program {self.__name__}{self._signature}>"

    def bind(self, **kwargs: Any) -> Program:
        """The program with some arguments given; they win over those given later."""
        return Program(self.func, self._bound | kwargs, *self._receiver)

    def __call__(self, *args: Any, **kwargs: Any) -> ProgramState:
        """`run`."""
        return self.run(*args, **kwargs)

    def run(self, *args: Any, **kwargs: Any) -> ProgramState:
        """Run the body and return its state, without waiting for what the model still writes.

        The program's arguments come with these settings, where the program has no parameter of that
        name: backend; stream (the body runs in a thread of its own, and the text can be read as it
        comes); seed (makes every draw repeat, forks differ); model_defaults (start from what the
        model's authors recommend); and for every gen that does not say otherwise max_new_tokens
        (128), n (1), stop, stop_token_ids, temperature (1.0), top_p, top_k, min_p,
        frequency_penalty, presence_penalty, repetition_penalty, logit_bias, ignore_eos,
        return_logprob, logprob_start_len, top_logprobs_num.

        Raises:
            TypeError: the arguments are not the program's.
            InvalidRequest: a setting breaks a rule, or there is no backend.
            Exception: whatever the body raises; if it streams, reading the state raises it instead.
        """
        own = self._signature.parameters
        settings = {
            name: value
            for name, value in kwargs.items()
            if name in RUN_SETTINGS and name not in own
        }
        arguments = {name: value for name, value in kwargs.items() if name not in settings}
        call = self._call(args, arguments)
        backend, seed = settings.pop("backend", None), settings.pop("seed", None)
        stream = settings.pop("stream", False)
        executor = Executor(self._new_run(backend, seed, settings, stream=stream))
        if stream:
            context = contextvars.copy_context()
            threading.Thread(
                target=context.run,
                args=(_run_body, executor, call),
                name=f"branchline-{self.__name__}",
                daemon=True,
            ).start()
            return ProgramState(executor, outside=True)
        error = _run_body(executor, call)
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

        An item that fails disturbs no other: reading its state raises its `ProgramError`.

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
            settings: model_defaults, and those that `run` has for every gen.

        Returns:
            The states, in the order of the items.

        Raises:
            TypeError: an item's arguments are not the program's; nothing has run then.
            InvalidRequest: a setting breaks a rule, or there is no backend.
        """
        calls = [
            self._call((), item) if isinstance(item, Mapping) else self._call(item, {})
            for item in batch_kwargs
        ]
        seeds = [None if seed is None else derive_seed(seed, index) for index in range(len(calls))]
        jobs = [
            functools.partial(_run_item, self._new_run(backend, item_seed, settings), call)
            for call, item_seed in zip(calls, seeds, strict=True)
        ]
        results = completed(jobs, pool_size(num_threads, len(jobs)), progress_bar=progress_bar)
        if as_completed:
            return results
        states = in_order(results)
        return states if generator_style else list(states)

    def _call(
        self, args: Sequence[Any], arguments: Mapping[str, Any]
    ) -> Callable[[ProgramState], Any]:
        """The body with all but its state; TypeError if the arguments are not the program's."""
        arguments = {**arguments, **self._bound}
        self._signature.bind(*self._receiver, None, *args, **arguments)
        return lambda state: self.func(*self._receiver, state, *args, **arguments)

    def _new_run(
        self,
        backend: Backend | None,
        seed: int | None,
        settings: Mapping[str, Any],
        *,
        stream: bool = False,
    ) -> Run:
        chosen = resolve_backend(backend)
        given = dict(settings)
        defaults = chosen.card.generation_defaults if given.pop("model_defaults", False) else {}
        for name in given:
            if name not in SAMPLING_SETTINGS:
                known = ", ".join(("model_defaults", *SAMPLING_SETTINGS))
                raise TypeError(f"{name!r} is none of {known}")
        return Run(
            program=self.__name__,
            backend=chosen,
            template=chosen.card.chat_template or PLAIN_TEMPLATE,
            params=with_changes(SamplingParams(), defaults | sampling_changes(given)),
            seed=seed,
            stream=stream,
            body=Future(),
        )


@overload
def function(func: Callable[..., Any]) -> Program: ...
@overload
def function(func: None = None) -> Callable[[Callable[..., Any]], Program]: ...
def function(
    func: Callable[..., Any] | None = None,
) -> Program | Callable[[Callable[..., Any]], Program]:
    """Make a program of a function whose first parameter is `s`; `@function` or `@function()`."""
    if func is None:
        return function
    _check_parameters(func)
    return Program(func)


def _run_item(run: Run, call: Callable[[ProgramState], Any]) -> ProgramState:
    executor = Executor(run)
    _run_body(executor, call)
    executor.tail().result()
    return ProgramState(executor)


def _run_body(executor: Executor, call: Callable[[ProgramState], Any]) -> BaseException | None:
    """Run a body to its end.

    An exception is returned, and ends the state as well, after what had been appended.
    """
    try:
        value = call(ProgramState(executor))
    except BaseException as error:  # noqa: BLE001 - the state's readers must learn of any end
        failure = _body_failure(executor, error)
        executor.submit(Fail(failure))
        executor.run.body.set_exception(failure)
        return error
    executor.run.body.set_result(value)
    return None


def _body_failure(executor: Executor, error: BaseException) -> ProgramError:
    if isinstance(error, ProgramError):
        return error
    return ProgramError(error, program=executor.run.program, site=raise_site(error.__traceback__))


def _check_parameters(func: Callable[..., Any]) -> None:
    """Refuse what cannot be a program, and say where a parameter takes the place of a setting."""
    if inspect.iscoroutinefunction(func) or inspect.isasyncgenfunction(func):
        raise TypeError(f"{func.__name__} is async; a program is an ordinary function")
    names = list(inspect.signature(func).parameters)
    if names[:1] != ["s"] and names[:2] not in (["self", "s"], ["cls", "s"]):
        raise TypeError(f"the first parameter of the program {func.__name__} must be named s")
    for name in RUN_SETTINGS.intersection(names):
        warnings.warn(
            f"{func.__name__} has a parameter named {name}, which is also a setting of run(): "
            "the program gets it",
            stacklevel=3,
        )
