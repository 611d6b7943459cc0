"""What programs have in common, whether their bodies are async or not."""

from __future__ import annotations

import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from branchline.control import Control
from branchline.default_backend import default_backend, resolve_backend
from branchline.interpreter import Run
from branchline.nodes import Argument
from branchline.retry import NO_RETRY
from branchline.roles import PLAIN_TEMPLATE
from branchline.sampling_params import SamplingParams
from branchline.seeds import derive_seed
from branchline.settings import (
    CONTROL_SETTINGS,
    RUN_SETTINGS,
    SAMPLING_SETTINGS,
    check_retry,
    sampling_changes,
    with_changes,
)
from branchline.tracing import NO_MODEL, keep_prefix, trace_body

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from branchline.backend import Backend
    from branchline.tracing import Trace

    Item = Mapping[str, Any] | Sequence[Any]


_MANY = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class Declared(ABC):
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

    def __get__(self, instance: object, owner: type | None = None) -> Self:
        if instance is None or self._receiver or next(iter(self._signature.parameters)) == "s":
            return self
        return type(self)(self.func, self._bound, instance)

    def __repr__(self) -> str:
        return f"<program {self.__name__}{self._signature}>"

    @abstractmethod
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run it."""

    def bind(self, **kwargs: Any) -> Self:
        """The program with some arguments given; they win over those given later."""
        return type(self)(self.func, self._bound | kwargs, *self._receiver)

    def trace(self, *args: Any, backend: Backend | None = None, **kwargs: Any) -> Trace:
        """What the program appends before it needs an answer, or an argument that is not given.

        The body runs once, and asks nothing of the backend. It is stopped by whatever it cannot do
        without them, so what it does before, it does.

        Args:
            args: some of the program's arguments; the others stand for themselves.
            backend: whose chat template is used; the default one if None, and plain turns if there
                is none.
            kwargs: some of the program's arguments, by name.

        Raises:
            TypeError: the program has no such arguments.
        """
        given = self._signature.bind_partial(
            *self._receiver, None, *args, **{**kwargs, **self._bound}
        )
        for name, parameter in self._signature.parameters.items():
            if name not in given.arguments and parameter.kind not in _MANY:
                given.arguments[name] = Argument(name)

        def arguments(state: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
            given.arguments["s"] = state
            return given.args, given.kwargs

        body = _applied(self.func, arguments)
        chosen = default_backend() if backend is None else backend
        return trace_body(self.__name__, body, NO_MODEL if chosen is None else chosen.card)

    def cache(self, backend: Backend | None = None, *, expiry: float = 600.0) -> int:
        """Compute the constant text that the program starts with, and keep it in the cache.

        Args:
            backend: whose cache; the default one if None.
            expiry: seconds for which it is kept; after that it goes like any other prefix.

        Returns:
            The tokens that it has.

        Raises:
            InvalidRequest: there is no backend, or the expiry is out of range.
        """
        chosen = resolve_backend(backend)
        return keep_prefix(chosen, self.trace(backend=chosen), expiry)

    def _prepare(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Run, Callable[[Any], Any]]:
        """A run, and the body with all but its state.

        A keyword is a setting where the program has no parameter of that name.
        """
        own = self._signature.parameters
        settings = {
            name: value
            for name, value in kwargs.items()
            if name in RUN_SETTINGS and name not in own
        }
        body = self._call(
            args, {name: value for name, value in kwargs.items() if name not in settings}
        )
        backend, seed = settings.pop("backend", None), settings.pop("seed", None)
        stream = settings.pop("stream", False)
        return self._new_run(backend, seed, settings, stream=stream), body

    def _prepare_batch(
        self,
        items: Sequence[Item],
        backend: Backend | None,
        seed: int | None,
        settings: Mapping[str, Any],
    ) -> list[tuple[Run, Callable[[Any], Any]]]:
        """`_prepare` for each item, whose arguments are never settings."""
        bodies = [
            self._call((), item) if isinstance(item, Mapping) else self._call(item, {})
            for item in items
        ]
        seeds = [None if seed is None else derive_seed(seed, index) for index in range(len(bodies))]
        return [
            (self._new_run(backend, item_seed, settings), body)
            for body, item_seed in zip(bodies, seeds, strict=True)
        ]

    def _call(self, args: Sequence[Any], arguments: Mapping[str, Any]) -> Callable[[Any], Any]:
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
        retry = check_retry(given.pop("retry", None)) or NO_RETRY
        control = Control(given.pop("timeout", None))
        for name in given:
            if name not in SAMPLING_SETTINGS:
                known = ", ".join((*CONTROL_SETTINGS, *SAMPLING_SETTINGS))
                raise TypeError(f"{name!r} is none of {known}")
        return Run(
            program=self.__name__,
            backend=chosen,
            template=chosen.card.chat_template or PLAIN_TEMPLATE,
            params=with_changes(SamplingParams(), defaults | sampling_changes(given)),
            seed=seed,
            stream=stream,
            body=Future(),
            retry=retry,
            control=control,
        )


def _applied(
    func: Callable[..., Any], arguments: Callable[[Any], tuple[tuple[Any, ...], dict[str, Any]]]
) -> Callable[[Any], Any]:
    """A body of the function's kind, async or not."""

    async def async_body(state: Any) -> Any:
        args, kwargs = arguments(state)
        return await func(*args, **kwargs)

    def body(state: Any) -> Any:
        args, kwargs = arguments(state)
        return func(*args, **kwargs)

    return async_body if inspect.iscoroutinefunction(func) else body
