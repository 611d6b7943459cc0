"""`s`: what a program appends to and reads from."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, overload

from branchline.errors import InvalidRequest
from branchline.group import ProgramStateGroup
from branchline.nodes import Node, RoleBegin, RoleEnd, ScopeBegin, ScopeEnd, as_node
from branchline.seen import Seen
from branchline.streams import (
    async_text_chunks,
    async_variable_chunks,
    async_variable_chunks_with_meta,
    text_chunks,
    variable_chunks,
)
from branchline.turns import turn
from branchline.variable import Variable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from concurrent.futures import Future
    from typing import Self

    from branchline.executor import Executor
    from branchline.program_error import ProgramError
    from branchline.snapshot import Snapshot


class ProgramState(Seen):
    """The text of one program, or of one branch of it, and its variables.

    Appending returns at once; reading waits for what it needs. Where something failed, reading
    raises `ProgramError`: of a variable, if what was to fill it failed or was skipped because
    something before it had; of the text and the messages, if anything did. What had succeeded
    before can still be read. Threads may share a state.

    The state that `run(stream=True)` returns is the body's state seen from outside: reading its
    text, or a variable that the body has not named yet, waits for the body.
    """

    # ------------------------------------------------------------------ appending

    def __iadd__(self, other: object) -> Self:
        """Append text or an expression."""
        # `s += s.user("…")` has appended already when it comes here.
        if other is not self:
            self._executor.submit(as_node(other))
        return self

    @overload
    def system(self, expr: None = None) -> Between: ...
    @overload
    def system(self, expr: str | Node) -> ProgramState: ...
    def system(self, expr: str | Node | None = None) -> Between | ProgramState:
        """Append a system turn now; without an expression, a `with` block that is the turn."""
        return self._turn("system", expr)

    @overload
    def user(self, expr: None = None) -> Between: ...
    @overload
    def user(self, expr: str | Node) -> ProgramState: ...
    def user(self, expr: str | Node | None = None) -> Between | ProgramState:
        """Append a user turn now; without an expression, a `with` block that is the turn."""
        return self._turn("user", expr)

    @overload
    def assistant(self, expr: None = None) -> Between: ...
    @overload
    def assistant(self, expr: str | Node) -> ProgramState: ...
    def assistant(self, expr: str | Node | None = None) -> Between | ProgramState:
        """Append an assistant turn now; without an expression, a `with` block that is the turn."""
        return self._turn("assistant", expr)

    def _turn(self, role: str, expr: str | Node | None) -> Between | ProgramState:
        if expr is None:
            return Between(self._executor, RoleBegin(role), RoleEnd(role))
        self._executor.submit(turn(role, expr))
        return self

    def var_scope(self, name: str) -> Between:
        """A `with` block: the variable becomes the text that is appended inside it."""
        return Between(self._executor, ScopeBegin(), ScopeEnd(name))

    # ------------------------------------------------------------------ variables

    def __getitem__(self, name: str) -> Any:
        """The value of a variable, when it is there.

        Raises:
            ProgramError: it could not be made.
            KeyError: the program has not named it.
        """
        return self.get_var(name)

    def get_var(self, name: str) -> Any:
        """`s[name]`."""
        return self._named(name).get()

    def text_of(self, name: str) -> Any:
        """What was written for a variable, whatever the type of its value; of several a list.

        None for a variable that the program has set itself. Raises like `s[name]` where nothing was
        written.
        """
        return self._named(name).text()

    def __setitem__(self, name: str, value: Any) -> None:
        self.set_var(name, value)

    def set_var(self, name: str, value: Any) -> None:
        """Let a variable be a value from here on; the text stays as it is."""
        variable = Variable()
        variable.fill(value)
        self._executor.set(name, variable)

    def __contains__(self, name: object) -> bool:
        """Whether a variable has a value now; never waits."""
        self._executor.tail()
        variable = self._executor.variables.get(name) if isinstance(name, str) else None
        return variable is not None and variable.ready

    def get_meta_info(self, name: str) -> Any:
        """What is known about a variable's value, when it is there: a dict, or a list of them.

        None for a variable that no model made or that does not exist. Raises like `s[name]` where
        it failed.
        """
        try:
            variable = self._named(name)
        except KeyError:
            return None
        return variable.meta()

    def _named(self, name: str) -> Variable:
        variables = self._executor.variables
        if name not in variables and self._outside:
            for named in self._executor.names.follow(self._executor.run.body):
                if named == name:
                    break
        return self._existing(name)

    def _existing(self, name: str) -> Variable:
        self._executor.tail()
        variable = self._executor.variables.get(name)
        if variable is None:
            self.sync()  # an error in the program explains better why it is not there
            known = ", ".join(self._executor.variables) or "none"
            raise KeyError(f"{name!r}: this state has no such variable; it has: {known}")
        return variable

    # ------------------------------------------------------------------ reading

    def sync(self) -> None:
        """Wait until everything appended has happened. Raises ProgramError if something failed."""
        self._read()

    def text(self) -> str:
        """All of the text, when everything appended has happened. Raises ProgramError."""
        return self._read().text

    def messages(self) -> list[dict[str, str]]:
        """The turns that have ended, when everything appended has happened. Raises ProgramError."""
        return [{"role": role, "content": content} for role, content in self._read().messages]

    def error(self) -> ProgramError | None:
        """What failed, when everything appended has happened; None if nothing did."""
        return self._end().result().error

    def __repr__(self) -> str:
        """Waits like `text`, and shows the text so far where something failed."""
        return f"ProgramState({self._end().result().text})"

    @property
    def ret_value(self) -> Any:
        """What the body returned; None inside it. Raises ProgramError if the body raised."""
        body = self._executor.run.body
        return body.result() if self._outside or body.done() else None

    def _read(self) -> Snapshot:
        snapshot = self._end().result()
        if snapshot.error is not None:
            raise snapshot.error.with_traceback(None)
        return snapshot

    def _end(self) -> Future[Snapshot]:
        return self._executor.finished() if self._outside else self._executor.tail()

    # ------------------------------------------------------------------ streaming

    def text_iter(self, name: str | None = None) -> Iterator[Any]:
        """The text as it comes, prompt included; or one variable's, as it is written.

        Without `run(stream=True)` it comes in one item. An error is raised after what had come
        before it.
        """
        if name is None:
            yield from text_chunks(self._executor, self._end())
        else:
            yield from variable_chunks(self._named(name))

    async def text_async_iter(
        self, name: str | None = None, return_meta_data: bool = False
    ) -> AsyncIterator[Any]:
        """`text_iter` for an event loop; of a variable, pairs of text and meta info if asked.

        What is known about tokens without text to show comes with the next pair; the last pair may
        have no text.
        """
        if name is None:
            chunks: AsyncIterator[Any] = async_text_chunks(self._executor, self._end())
        elif return_meta_data:
            chunks = async_variable_chunks_with_meta(await self._async_named(name))
        else:
            chunks = async_variable_chunks(await self._async_named(name))
        async for chunk in chunks:
            yield chunk

    async def _async_named(self, name: str) -> Variable:
        executor = self._executor
        if name not in executor.variables and self._outside:
            async for named in executor.names.afollow(executor.run.body):
                if named == name:
                    break
        if name not in executor.variables:
            # Shielded: a reader that is cancelled must not cancel the program.
            await asyncio.shield(asyncio.wrap_future(self._end()))
        return self._named(name)

    # ------------------------------------------------------------------ branching

    def fork(self, size: int = 1) -> ProgramStateGroup:
        """Branches that go on from here, each on its own; returns at once and costs no request.

        Raises:
            InvalidRequest: the size is negative.
        """
        if size < 0:
            raise InvalidRequest(f"fork({size}): the number of branches cannot be negative")
        branches = [ProgramState(executor) for executor in self._executor.fork(size)]
        return ProgramStateGroup(branches, self)

    @contextmanager
    def copy(self) -> Iterator[ProgramState]:
        """A `with` block on one branch; at its end its variables come back as lists of one."""
        branches = self.fork(1)
        yield branches[0]
        branches.join()


class Between:
    """A `with` block that begins and ends something in the state, whether or not it raises."""

    def __init__(self, executor: Executor, begin: Node, end: Node) -> None:
        self._executor = executor
        self._begin = begin
        self._end = end

    def __enter__(self) -> None:
        self._executor.submit(self._begin)

    def __exit__(self, *_: object) -> None:
        self._executor.submit(self._end)
