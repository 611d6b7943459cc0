"""SGLang's programs: `function`, and what it makes of one."""

from __future__ import annotations

import functools
import inspect
from dataclasses import replace
from typing import TYPE_CHECKING, Any, overload

from branchline import program, state
from branchline.sglang.backend import BaseBackend, as_endpoint
from branchline.sglang.config import VERBOSE, global_config
from branchline.sglang.interpreter import ProgramState
from branchline.sglang.params import Params, patterns
from branchline.sglang.traced import Traced

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from branchline.interpreter import Run

# Settings of `run` that only say how SGLang does it, or ask for what is always there.
WITHOUT_EFFECT = frozenset({"use_thread", "return_text_in_logprobs"})


class SglFunction(program.Program):
    """A program of SGLang's.

    It is Branchline's `Program` on an `Endpoint`. API speculation asks for fewer requests, not for
    another text, and changes nothing here.
    """

    def __init__(
        self,
        func: Callable[..., Any],
        bound: Mapping[str, Any] | None = None,
        *receiver: object,
        num_api_spec_tokens: int | None = None,
        stop_regex: Sequence[str] = (),
    ) -> None:
        super().__init__(_in_sglang_state(func), bound, *receiver)
        self._written = func
        self.bind_arguments = dict(bound or {})
        self.num_api_spec_tokens = num_api_spec_tokens
        self.pin_prefix_rid = None
        self._stop_regex = tuple(stop_regex)

    @property
    def arg_names(self) -> list[str]:
        """The program's parameters after `s`."""
        return list(self._signature.parameters)[1 + len(self._receiver) :]

    @property
    def arg_defaults(self) -> list[Any]:
        """The defaults of the last of them."""
        empty = inspect.Parameter.empty
        parameters = self._signature.parameters.values()
        return [one.default for one in parameters if one.default is not empty]

    def __get__(self, instance: object, owner: type | None = None) -> SglFunction:
        bound = super().__get__(instance, owner)
        return self if bound is self else self._again(self.bind_arguments, instance)

    def bind(self, **kwargs: Any) -> SglFunction:
        """The program with some arguments given; they win over those given later."""
        return self._again(self.bind_arguments | kwargs, *self._receiver)

    def __call__(self, *args: Any, **kwargs: Any) -> ProgramState:
        """`run`."""
        return self.run(*args, **kwargs)

    def run(self, *args: Any, **kwargs: Any) -> ProgramState:
        """`Program.run` with SGLang's settings: those, and stop_regex."""
        special = self._special(kwargs)
        if special is not self:
            return special.run(*args, **kwargs)
        started = ProgramState.of(super().run(*args, **kwargs))
        return started if started.streams else _printed(started)

    def run_batch(  # type: ignore[override]
        self, batch_kwargs: Sequence[Any], **options: Any
    ) -> list[ProgramState] | Iterator[Any]:
        """`Program.run_batch` with SGLang's settings."""
        special = self._special(options)
        if special is not self:
            return special.run_batch(batch_kwargs, **options)
        if not batch_kwargs:
            return []
        states = super().run_batch(batch_kwargs, **options)
        if isinstance(states, list):
            return [_printed(ProgramState.of(one)) for one in states]
        return (_printed(ProgramState.of(one)) for one in states)

    def trace(self, *args: Any, backend: Any = None, **kwargs: Any) -> Traced:
        """`Program.trace`, with what SGLang's tracer has besides."""
        found = backend or global_config.default_backend
        # Of a backend of SGLang's own the template is all that is needed, so any will do.
        known = found is None or isinstance(found, BaseBackend)
        source: Any = found if known else as_endpoint(found)
        return Traced.of(super().trace(*args, backend=source, **kwargs))

    def cache(self, backend: Any = None, *, expiry: float = 600.0) -> int:
        """Compute the constant text that the program starts with, and keep it for so many seconds.

        The tokens that it has.
        """
        return super().cache(as_endpoint(backend), expiry=expiry)

    pin = cache  # as it was called once

    def unpin(self, backend: Any = None) -> None:
        """Nothing: what is kept goes with its time."""

    def compile(self, *, backend: Any = None) -> SglFunction:
        """The program itself: there is nothing to compile, what is shared is found at run time."""
        return self

    def _special(self, settings: dict[str, Any]) -> SglFunction:
        """Take what only SGLang has out of a run's settings; the program that has it built in."""
        own = self._signature.parameters
        for name in WITHOUT_EFFECT - own.keys():
            settings.pop(name, None)
        stops = None if "stop_regex" in own else patterns(settings.pop("stop_regex", None))
        if not stops:
            return self
        return self._again(self.bind_arguments, *self._receiver, stop_regex=stops)

    def _again(
        self, bound: Mapping[str, Any], *receiver: object, stop_regex: Sequence[str] = ()
    ) -> SglFunction:
        return SglFunction(
            self._written,
            bound,
            *receiver,
            num_api_spec_tokens=self.num_api_spec_tokens,
            stop_regex=stop_regex,
        )

    def _new_run(self, backend: Any, *args: Any, **kwargs: Any) -> Run:
        run = super()._new_run(as_endpoint(backend), *args, **kwargs)
        return replace(run, params=Params.of(run.params, stop_regex=self._stop_regex))


@overload
def function(func: Callable[..., Any], num_api_spec_tokens: int | None = ...) -> SglFunction: ...
@overload
def function(
    func: None = None,
    num_api_spec_tokens: int | None = ...,
    *,
    api_num_spec_tokens: int | None = ...,
) -> Callable[[Callable[..., Any]], SglFunction]: ...
def function(
    func: Callable[..., Any] | None = None,
    num_api_spec_tokens: int | None = None,
    *,
    api_num_spec_tokens: int | None = None,
) -> SglFunction | Callable[[Callable[..., Any]], SglFunction]:
    """Make a program of a function whose first parameter is `s`; `@function` or `@function()`.

    Raises:
        TypeError: the first parameter has another name.
    """
    tokens = num_api_spec_tokens if api_num_spec_tokens is None else api_num_spec_tokens
    if func is None:
        return functools.partial(_function, num_api_spec_tokens=tokens)
    return _function(func, num_api_spec_tokens=tokens)


def _function(func: Callable[..., Any], *, num_api_spec_tokens: int | None) -> SglFunction:
    program.function(func)  # refuses what cannot be a program
    return SglFunction(func, num_api_spec_tokens=num_api_spec_tokens)


def _in_sglang_state(func: Callable[..., Any]) -> Callable[..., Any]:
    """The function, called with the state as SGLang's programs know it."""
    at = list(inspect.signature(func).parameters).index("s")

    @functools.wraps(func)
    def body(*args: Any, **kwargs: Any) -> Any:
        return func(*args[:at], _own_state(args[at]), *args[at + 1 :], **kwargs)

    return body


def _printed(done: ProgramState) -> ProgramState:
    """The state, whose text is printed if the settings of the process say so."""
    if global_config.verbosity >= VERBOSE:
        print(done.text())
    return done


def _own_state(plain: state.ProgramState) -> ProgramState:
    executor = plain._executor
    if not isinstance(executor.run.params, Params):  # the program is only traced
        executor.run = replace(executor.run, params=Params.of(executor.run.params))
    return ProgramState.of(plain)
