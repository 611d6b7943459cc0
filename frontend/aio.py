"""`s` in an async program: appending is the same, reading is awaited."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, overload

from branchline.group import AsyncProgramStateGroup
from branchline.handle import Handle, done
from branchline.state import ProgramState

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Generator
    from typing import NoReturn, Self

    from branchline.events import Events
    from branchline.executor import Executor
    from branchline.nodes import Node
    from branchline.program_error import ProgramError
    from branchline.state import Between
    from branchline.usage import StateUsage


class Reading:
    """A variable to be read: `await s["x"]` for its value, `async for` for its text as it comes."""

    def __init__(self, state: ProgramState, name: str) -> None:
        self._state = state
        self._name = name

    def __await__(self) -> Generator[Any, None, Any]:
        return self._value().__await__()

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._state.text_async_iter(self._name)

    def __str__(self) -> NoReturn:
        """Nothing that belongs in a prompt."""
        raise TypeError(f"s[{self._name!r}] of an async program has to be awaited")

    def __repr__(self) -> str:
        return f"<s[{self._name!r}], to be awaited>"

    async def _value(self) -> Any:
        variable = await self._state._async_named(self._name)
        await done(variable.filled)
        return variable.get()


class AsyncProgramState(Handle):
    """The state of an async program, or of one branch of it.

    What `ProgramState` reads at once is awaited here: `await s["x"]`, `await s.text()`, `await
    forks.join()`. Awaiting the state itself waits for everything, and gives the `ProgramState`.
    """

    def __init__(self, executor: Executor, *, outside: bool = False) -> None:
        super().__init__(executor, outside=outside)
        self._state = ProgramState(executor, outside=outside)

    # ------------------------------------------------------------------ appending

    def __iadd__(self, other: object) -> Self:
        """Append text or an expression."""
        if other is not self:
            self._state += other
        return self

    @overload
    def system(self, expr: None = None) -> Between: ...
    @overload
    def system(self, expr: str | Node) -> AsyncProgramState: ...
    def system(self, expr: str | Node | None = None) -> Between | AsyncProgramState:
        """Append a system turn now; without an expression, a `with` block that is the turn."""
        return self._turn("system", expr)

    @overload
    def user(self, expr: None = None) -> Between: ...
    @overload
    def user(self, expr: str | Node) -> AsyncProgramState: ...
    def user(self, expr: str | Node | None = None) -> Between | AsyncProgramState:
        """Append a user turn now; without an expression, a `with` block that is the turn."""
        return self._turn("user", expr)

    @overload
    def assistant(self, expr: None = None) -> Between: ...
    @overload
    def assistant(self, expr: str | Node) -> AsyncProgramState: ...
    def assistant(self, expr: str | Node | None = None) -> Between | AsyncProgramState:
        """Append an assistant turn now; without an expression, a `with` block that is the turn."""
        return self._turn("assistant", expr)

    def _turn(self, role: str, expr: str | Node | None) -> Between | AsyncProgramState:
        turn = self._state._turn(role, expr)
        return self if turn is self._state else turn  # type: ignore[return-value]

    def var_scope(self, name: str) -> Between:
        """A `with` block: the variable becomes the text that is appended inside it."""
        return self._state.var_scope(name)

    # ------------------------------------------------------------------ variables

    def __getitem__(self, name: str) -> Reading:
        """A variable, to be awaited or to be followed with `async for`."""
        return Reading(self._state, name)

    async def get_var(self, name: str) -> Any:
        """`await s[name]`."""
        return await self[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self._state[name] = value

    def set_var(self, name: str, value: Any) -> None:
        """Let a variable be a value from here on; the text stays as it is."""
        self._state.set_var(name, value)

    def __contains__(self, name: object) -> bool:
        """Whether a variable has a value now."""
        return name in self._state

    async def text_of(self, name: str) -> Any:
        """What was written for a variable, whatever the type of its value."""
        await self._filled(name)
        return self._state.text_of(name)

    async def get_meta_info(self, name: str) -> Any:
        """What is known about a variable's value: a dict, or a list of them."""
        try:
            await self._filled(name)
        except KeyError:
            return None
        return self._state.get_meta_info(name)

    async def _filled(self, name: str) -> None:
        await done((await self._state._async_named(name)).filled)

    # ------------------------------------------------------------------ reading

    async def sync(self) -> None:
        """Wait until everything appended has happened. Raises ProgramError if something failed."""
        await self._end()
        self._state.sync()

    async def text(self) -> str:
        """All of the text, when everything appended has happened. Raises ProgramError."""
        await self._end()
        return self._state.text()

    async def messages(self) -> list[dict[str, str]]:
        """The turns that have ended, when everything appended has happened. Raises ProgramError."""
        await self._end()
        return self._state.messages()

    async def error(self) -> ProgramError | None:
        """What failed, when everything appended has happened; None if nothing did."""
        await self._end()
        return self._state.error()

    async def usage(self) -> StateUsage:
        """`ProgramState.usage`."""
        await super()._finished()
        return self._state.usage

    async def trace(self) -> dict[str, Any]:
        """`ProgramState.trace`."""
        await super()._finished()
        return self._state.trace()

    @property
    def ret_value(self) -> Any:
        """What the body returned; None while it runs. Raises ProgramError if the body raised."""
        return self._state.ret_value if self._executor.run.body.done() else None

    def text_iter(self, name: str | None = None) -> AsyncIterator[Any]:
        """The text as it comes, prompt included; or one variable's, as it is written."""
        return self._state.text_async_iter(name)

    text_async_iter = text_iter

    def events(self) -> Events:
        """What happens in this state and in the branches below it, to be read with `async for`."""
        return self._state.events()

    async def _end(self) -> None:
        await done(self._state._end())

    async def _finished(self) -> ProgramState:
        await super()._finished()
        body = self._executor.run.body
        if self._outside:
            body.result()
        return self._state

    # ------------------------------------------------------------------ branching

    def fork(self, size: int = 1) -> AsyncProgramStateGroup:
        """Branches that go on from here, each on its own; returns at once and costs no request.

        Raises:
            InvalidRequest: the size is negative.
        """
        forks = self._state.fork(size)
        return AsyncProgramStateGroup(
            [AsyncProgramState(branch._executor) for branch in forks], forks
        )

    @asynccontextmanager
    async def copy(self) -> AsyncIterator[AsyncProgramState]:
        """An `async with` block on one branch; then its variables come back as lists of one."""
        branches = self.fork(1)
        yield branches[0]
        await branches.join()
