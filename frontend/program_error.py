"""What a program's reader gets when the program could not go on."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from branchline.errors import BranchlineError

if TYPE_CHECKING:
    from types import TracebackType

    from branchline.nodes import Node

PROMPT_TAIL_CHARS = 60


@dataclass(frozen=True, slots=True)
class Site:
    """A line of a user's program."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class ProgramError(BranchlineError):
    """A node of a program failed, or its body raised; whoever reads the state gets this.

    `__cause__` is what went wrong.

    Attributes:
        program: the program's name.
        site: the line that submitted the node, or that raised in the body.
        variable: the variable that the node was to fill, if any.
        prompt_tail: the end of the text that the state had before.
        node: what failed; None where the body raised.
    """

    def __init__(
        self,
        cause: BaseException,
        *,
        program: str,
        site: Site,
        variable: str | None = None,
        prompt: str = "",
        node: Node | None = None,
    ) -> None:
        where = f"program {program!r}" + (f", variable {variable!r}" if variable else "")
        tail = prompt[-PROMPT_TAIL_CHARS:]
        after = f" (after the text {tail!r})" if tail else ""
        super().__init__(f"{site}: {where}: {type(cause).__name__}: {cause}{after}")
        self.__cause__ = cause
        self.program = program
        self.site = site
        self.variable = variable
        self.prompt_tail = tail
        self.node = node


def call_site() -> Site:
    """The innermost line on this thread's stack that is not in the language itself."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_ours(frame.f_globals.get("__name__", "")):
        frame = frame.f_back
    return Site(frame.f_code.co_filename, frame.f_lineno)


def raise_site(traceback: TracebackType | None) -> Site:
    """The innermost line of a traceback that is not in the language itself."""
    site = Site("<unknown>", 0)
    while traceback is not None:
        frame = traceback.tb_frame
        if not _is_ours(frame.f_globals.get("__name__", "")):
            site = Site(frame.f_code.co_filename, traceback.tb_lineno)
        traceback = traceback.tb_next
    return site


def _is_ours(module: str) -> bool:
    """Whether a module lies directly in this package; its sub-packages are its users."""
    return module.rpartition(".")[0] == __package__
