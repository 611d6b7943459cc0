"""The state of a program of SGLang's: Branchline's, with what programs touch besides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from branchline import state
from branchline.group import ProgramStateGroup
from branchline.sglang.backend import Endpoint

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from typing import Self

    from branchline.executor import Executor

__all__ = ["ProgramState", "ProgramStateGroup", "StreamExecutor"]


class ProgramState(state.ProgramState):
    """`s` of a program of SGLang's."""

    @classmethod
    def of(cls, plain: state.ProgramState) -> Self:
        """The same state, with what this class adds."""
        return cls(plain._executor, outside=plain._outside)

    @property
    def streams(self) -> bool:
        """Whether it can be read as it comes."""
        return self._executor.run.stream

    def fork(
        self, size: int = 1, position_ids_offset: Sequence[int] | None = None
    ) -> ProgramStateGroup:
        """Branches that go on from here; offsets of positions change nothing, as in SGLang."""
        return ProgramStateGroup([ProgramState.of(branch) for branch in super().fork(size)], self)

    def get_meta_info(self, name: str) -> Any:
        """What is known about a variable; log-probabilities have their tokens' texts where known.

        None for a variable that no model made or that does not exist.
        """
        return _with_texts(super().get_meta_info(name), self._executor.run.backend)

    async def text_async_iter(
        self, name: str | None = None, return_meta_data: bool = False
    ) -> AsyncIterator[Any]:
        """`text_iter` for an event loop; of a variable, pairs of text and meta info if asked."""
        async for chunk in super().text_async_iter(name, return_meta_data):
            if isinstance(chunk, tuple):
                yield chunk[0], _with_texts(chunk[1], self._executor.run.backend)
            else:
                yield chunk

    @property
    def stream_executor(self) -> StreamExecutor:
        """What SGLang has behind a state."""
        return StreamExecutor(self)


class StreamExecutor:
    """What programs read of SGLang's executor: a view of a state, made anew at each use."""

    def __init__(self, of: ProgramState) -> None:
        self._state = of
        self._executor: Executor = of._executor
        self.sid = f"{id(self._executor):x}"
        self.backend = self._executor.run.backend

    @property
    def variables(self) -> dict[str, Any]:
        """The values that are there now."""
        self._executor.tail()
        named = self._executor.variables.items()
        return {name: variable.get() for name, variable in named if variable.ready}

    @property
    def meta_info(self) -> dict[str, Any]:
        """What is known about the values that are there now."""
        return {name: self._state.get_meta_info(name) for name in self.variables}

    @property
    def variable_event(self) -> dict[str, _Event]:
        """For each variable, what waits until it has its value or has failed."""
        self._executor.tail()
        named = self._executor.variables.items()
        return {name: _Event(variable.filled) for name, variable in named}

    @property
    def text_(self) -> str:
        """The text, when everything appended has happened."""
        return self._state.text()

    @property
    def messages_(self) -> list[dict[str, Any]]:
        """The turns that have ended, when everything appended has happened."""
        return self._state.messages()

    def text(self) -> str:
        """The text, when everything appended has happened."""
        return self._state.text()

    def messages(self) -> list[dict[str, Any]]:
        """The turns that have ended, when everything appended has happened."""
        return self._state.messages()

    def submit(self, expr: Any) -> None:
        """Append to the state."""
        self._state += expr

    def sync(self) -> None:
        """Wait until everything appended has happened."""
        self._state.sync()

    def get_var(self, name: str) -> Any:
        """A variable's value, when it is there."""
        return self._state.get_var(name)

    def set_var(self, name: str, value: Any) -> None:
        """Let a variable be a value from here on."""
        self._state.set_var(name, value)

    def get_meta_info(self, name: str, timeout: float | None = None) -> Any:
        """What is known about a variable.

        Raises:
            TimeoutError: its value is not there within so many seconds.
        """
        event = self.variable_event.get(name)
        if event is not None and not event.wait(timeout):
            raise TimeoutError(f"no value of {name!r} within {timeout} s")
        return self._state.get_meta_info(name)

    def error(self) -> Exception | None:
        """What failed, when everything appended has happened."""
        return self._state.error()

    def end(self) -> None:
        """Nothing: a state ends by itself."""


class _Event:
    """`threading.Event`, as far as it is waited for."""

    def __init__(self, filled: Any) -> None:
        self._filled = filled

    def is_set(self) -> bool:
        """Whether the value is there, or will never be."""
        return bool(self._filled.done())

    def wait(self, timeout: float | None = None) -> bool:
        """Whether it is there within so many seconds."""
        try:
            self._filled.exception(timeout)
        except TimeoutError:
            return False
        return True


_ONE_EACH = ("input_token_logprobs", "output_token_logprobs", "unconditional_token_logprobs")
_LISTS = ("input_top_logprobs", "output_top_logprobs")


def _with_texts(meta: Any, backend: Any) -> Any:
    """Meta info whose triples `[logprob, id, None]` have the token's text in the third place."""
    if isinstance(meta, list):
        return [_with_texts(one, backend) for one in meta]
    if not isinstance(meta, dict) or not isinstance(backend, Endpoint):
        return meta
    named = {key: _filled(meta[key], backend) for key in (*_ONE_EACH, *_LISTS) if key in meta}
    return meta | named


def _filled(value: Any, backend: Endpoint) -> Any:
    """Lists of triples, however deep, with texts: a copy, for branches share what it was."""
    if isinstance(value, list) and len(value) == 3 and isinstance(value[1], int):
        return [value[0], value[1], backend.token_text(value[1])]
    return [_filled(one, backend) for one in value] if isinstance(value, list) else value
