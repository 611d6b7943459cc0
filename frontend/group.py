"""The branches of a fork, and how they come back together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from branchline.errors import InvalidRequest
from branchline.nodes import Append, Fail, Node, as_node
from branchline.program_error import ProgramError
from branchline.snapshot import added, joined
from branchline.variable import Variable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

    from branchline.executor import Executor
    from branchline.protocol import Prompt
    from branchline.state import ProgramState


class ProgramStateGroup(Sequence["ProgramState"]):
    """The branches of one fork, in order."""

    def __init__(self, branches: Sequence[ProgramState], source: ProgramState) -> None:
        self._branches = tuple(branches)
        self._source = source

    def __len__(self) -> int:
        return len(self._branches)

    @overload
    def __getitem__(self, index: int) -> ProgramState: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[ProgramState]: ...
    def __getitem__(self, index: int | slice) -> ProgramState | Sequence[ProgramState]:
        return self._branches[index]

    def __setitem__(self, index: int, value: ProgramState) -> None:
        """What `forks[i] += …` ends with: the branch itself. Nothing else can take its place."""
        if value is not self._branches[index]:
            raise InvalidRequest(f"branch {index} of a fork cannot be replaced, only appended to")

    def __iter__(self) -> Iterator[ProgramState]:
        return iter(self._branches)

    def __iadd__(
        self, other: str | Node | Callable[[int], str | Node] | Sequence[str | Node]
    ) -> Self:
        """Append the same to every branch, or to branch i what `other(i)` returns or `other[i]` is.

        Raises:
            InvalidRequest: a list of another length.
        """
        for branch, node in zip(self._branches, self._nodes(other), strict=True):
            branch += node  # noqa: PLW2901 - a state is appended to in place
        return self

    def _nodes(self, other: Any) -> list[Node]:
        if isinstance(other, (list, tuple)):
            if len(other) != len(self):
                raise InvalidRequest(f"{len(other)} expressions for a fork of {len(self)} branches")
            return [as_node(item) for item in other]
        if callable(other):
            return [as_node(other(index)) for index in range(len(self))]
        return [as_node(other)] * len(self)

    def join(
        self, mode: Literal["gather_variable", "concate_and_append"] = "gather_variable"
    ) -> None:
        """Wait for every branch, then bring what they made to the state that was forked.

        `gather_variable`: every variable that the state does not have becomes the list of the
        branches' values, None where a branch has no such variable. If a branch failed to make one,
        reading the list raises that branch's error; the other variables, the other branches and the
        state itself are not disturbed.

        `concate_and_append`: the texts that the branches added are appended, in order. If a branch
        failed, the state fails with that branch's error.
        """
        executors = [branch._executor for branch in self._branches]
        target = self._source._executor
        if mode == "gather_variable":
            _gather(executors, target)
        elif mode == "concate_and_append":
            target.submit(_appended(executors))
        else:
            raise InvalidRequest(f"mode={mode!r}: join has gather_variable and concate_and_append")


def _gather(branches: Sequence[Executor], target: Executor) -> None:
    errors = [branch.tail().result().error for branch in branches]
    names = dict.fromkeys(name for branch in branches for name in branch.variables)
    for name in [name for name in names if name not in target.variables]:
        gathered = Variable()
        try:
            found = [
                _value(branch, name, error) for branch, error in zip(branches, errors, strict=True)
            ]
        except ProgramError as error:
            gathered.fail(error)
        else:
            gathered.fill([value for value, _ in found], [meta for _, meta in found])
        target.set(name, gathered)


def _value(branch: Executor, name: str, error: ProgramError | None) -> tuple[Any, Any]:
    """A branch's value of a variable, with its meta info; raises if it ended before naming it."""
    variable = branch.variables.get(name)
    if variable is not None:
        return variable.get(), variable.meta()
    if error is not None:
        raise error
    return None, None


def _appended(branches: Sequence[Executor]) -> Node:
    pieces: Prompt = ()
    text = ""
    for branch in branches:
        before, after = branch.start.result(), branch.tail().result()
        if after.error is not None:
            return Fail(after.error)
        pieces = joined(pieces, added(after.pieces, before.pieces))
        text += after.text[len(before.text) :]
    return Append(pieces, text)
