"""The branches of a fork, and how they come back together."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar, overload

from branchline.errors import InvalidRequest
from branchline.handle import done
from branchline.joining import join
from branchline.nodes import Node, as_node

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

    from branchline.aio import AsyncProgramState
    from branchline.executor import Executor
    from branchline.program_error import ProgramError
    from branchline.state import ProgramState

Mode = Literal["gather_variable", "concate_and_append"]


class _State(Protocol):
    _executor: Executor

    def __iadd__(self, other: object) -> Self: ...


S = TypeVar("S", bound=_State)
T = TypeVar("T")


class Branches(Sequence[S], Generic[S]):
    """The branches of one fork, in order."""

    def __init__(self, branches: Sequence[S]) -> None:
        self._branches = tuple(branches)

    def __len__(self) -> int:
        return len(self._branches)

    @overload
    def __getitem__(self, index: int) -> S: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[S]: ...
    def __getitem__(self, index: int | slice) -> S | Sequence[S]:
        return self._branches[index]

    def __setitem__(self, index: int, value: S) -> None:
        """What `forks[i] += …` ends with: the branch itself. Nothing else can take its place."""
        if value is not self._branches[index]:
            raise InvalidRequest(f"branch {index} of a fork cannot be replaced, only appended to")

    def __iter__(self) -> Iterator[S]:
        return iter(self._branches)

    def __iadd__(
        self, other: str | Node | Callable[[int], str | Node] | Sequence[str | Node]
    ) -> Self:
        """Append the same to every branch, or to branch i what `other(i)` returns or `other[i]` is.

        Raises:
            InvalidRequest: a list of another length.
        """
        for branch, node in zip(self._branches, self._nodes(other), strict=True):
            branch.__iadd__(node)
        return self

    def _nodes(self, other: Any) -> list[Node]:
        if isinstance(other, (list, tuple)):
            if len(other) != len(self):
                raise InvalidRequest(f"{len(other)} expressions for a fork of {len(self)} branches")
            return [as_node(item) for item in other]
        if callable(other):
            return [as_node(other(index)) for index in range(len(self))]
        return [as_node(other)] * len(self)

    def cancel(self) -> None:
        """Abort what the branches ask, now and from here on."""
        for branch in self._branches:
            branch._executor.cancel()

    def _winner(self) -> Future[int | None]:
        """The first branch to have settled without an error; None where each has failed."""
        winner: Future[int | None] = Future()
        lock = threading.Lock()
        left = len(self)

        def settle(index: int, _: object) -> None:
            nonlocal left
            failed = self._branches[index]._executor.tail().result().error is not None
            with lock:
                left -= 1
                if winner.done() or (failed and left):
                    return
                winner.set_result(None if failed else index)

        for index, branch in enumerate(self._branches):
            settled = branch._executor.settled(outside=False)
            settled.add_done_callback(functools.partial(settle, index))
        return winner

    def _first(self, index: int | None) -> S:
        if index is None:
            error = self._branches[-1]._executor.tail().result().error
            assert error is not None, "a branch that has not failed has won"
            raise error.with_traceback(None)
        for other, branch in enumerate(self._branches):
            if other != index:
                branch._executor.cancel()
        return self._branches[index]

    def _check_some(self) -> None:
        if not self._branches:
            raise InvalidRequest("first(): the fork has no branches")


class ProgramStateGroup(Branches["ProgramState"]):
    """The branches of one fork, in order."""

    def __init__(self, branches: Sequence[ProgramState], source: ProgramState) -> None:
        super().__init__(branches)
        self._source = source

    def join(self, mode: Mode = "gather_variable") -> list[dict[str, Any]]:
        """Wait for every branch, then bring what they made to the state that was forked.

        `gather_variable`: every variable that the state does not have becomes the list of the
        branches' values, None where a branch has no such variable. If a branch failed to make one,
        reading the list raises that branch's error; the other variables, the other branches and the
        state itself are not disturbed.

        `concate_and_append`: the texts that the branches added are appended, in order. If a branch
        failed, the state fails with that branch's error.

        Returns:
            What each branch has named since the fork, and could make.
        """
        return join([branch._executor for branch in self], self._source._executor, mode)

    def errors(self) -> list[ProgramError | None]:
        """What failed in each branch, when everything appended to it has happened."""
        return [branch.error() for branch in self]

    def map(self, function: Callable[[ProgramState], T]) -> list[T]:
        """What a function makes of each branch, one after the other.

        What it appends, all branches ask at the same time; what it reads, it waits for.
        """
        return [function(branch) for branch in self]

    def first(self) -> ProgramState:
        """The first branch where everything appended has happened; the others are cancelled.

        A branch that fails is out of the race.

        Raises:
            ProgramError: every branch failed.
            InvalidRequest: there are no branches.
        """
        self._check_some()
        return self._first(self._winner().result())


class AsyncProgramStateGroup(Branches["AsyncProgramState"]):
    """The branches of one fork of an async program, in order."""

    def __init__(self, branches: Sequence[AsyncProgramState], group: ProgramStateGroup) -> None:
        super().__init__(branches)
        self._group = group

    async def join(self, mode: Mode = "gather_variable") -> list[dict[str, Any]]:
        """`ProgramStateGroup.join`."""
        await self._settled()
        return self._group.join(mode)

    async def errors(self) -> list[ProgramError | None]:
        """`ProgramStateGroup.errors`."""
        await self._settled()
        return self._group.errors()

    async def map(self, function: Callable[[AsyncProgramState], Awaitable[T]]) -> list[T]:
        """What an async function makes of each branch, all at the same time.

        Where one raises, the others end and their branches are cancelled.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                made = [tasks.create_task(_await(function, branch)) for branch in self]
        except BaseExceptionGroup as errors:
            self.cancel()
            raise errors.exceptions[0] from None
        return [task.result() for task in made]

    async def first(self) -> AsyncProgramState:
        """`ProgramStateGroup.first`."""
        self._check_some()
        winner = self._winner()
        await done(winner)
        return self._first(winner.result())

    async def _settled(self) -> None:
        for branch in self:
            await done(branch._executor.tail())


async def _await(function: Callable[[S], Awaitable[T]], branch: S) -> T:
    return await function(branch)
