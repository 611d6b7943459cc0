"""Brings what the branches of a fork made to the state that was forked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from branchline.errors import InvalidRequest
from branchline.nodes import Append, Fail, Node
from branchline.program_error import ProgramError
from branchline.snapshot import added, joined
from branchline.variable import Variable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from branchline.executor import Executor
    from branchline.protocol import Prompt


def join(branches: Sequence[Executor], target: Executor, mode: str) -> list[dict[str, Any]]:
    """Wait for the branches and join them; of each, what it has that the state had not.

    Raises:
        InvalidRequest: there is no such mode.
    """
    if mode not in ("gather_variable", "concate_and_append"):
        raise InvalidRequest(f"mode={mode!r}: join has gather_variable and concate_and_append")
    errors = [branch.tail().result().error for branch in branches]
    names = dict.fromkeys(name for branch in branches for name in branch.variables)
    new = [name for name in names if name not in target.variables]
    if mode == "gather_variable":
        target.joined(branches, mode, new)
        for name in new:
            target.set(name, _gathered(branches, errors, name))
    else:
        appended = _appended(branches)
        target.joined(branches, mode)
        target.submit(appended)
    for branch in branches:
        branch.end()
    return [
        {name: branch.variables[name].get() for name in new if _has(branch, name)}
        for branch in branches
    ]


def _has(branch: Executor, name: str) -> bool:
    return name in branch.variables and branch.variables[name].ready


def _gathered(
    branches: Sequence[Executor], errors: Sequence[ProgramError | None], name: str
) -> Variable:
    gathered = Variable()
    try:
        found = [
            _value(branch, name, error) for branch, error in zip(branches, errors, strict=True)
        ]
    except ProgramError as error:
        gathered.fail(error)
    else:
        values, metas, texts = (list(column) for column in zip(*found, strict=True))
        gathered.fill(values, metas, texts)
    return gathered


def _value(branch: Executor, name: str, error: ProgramError | None) -> tuple[Any, Any, Any]:
    """A branch's value, meta info and text of a variable; raises if it ended before naming it."""
    variable = branch.variables.get(name)
    if variable is not None:
        return variable.get(), variable.meta(), variable.text()
    if error is not None:
        raise error
    return None, None, None


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
