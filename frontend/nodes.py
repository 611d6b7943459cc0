"""What a program appends to a state: small immutable values, combined with `+`.

Nodes hold no results and belong to no state, so one node may be appended to any number of forks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from branchline.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from branchline.choices import ChoicesSamplingMethod
    from branchline.protocol import Prompt
    from branchline.reasoning import ReasoningFormat
    from branchline.retry import Retry
    from branchline.tools import Toolbox


class Node:
    """A part of a program."""

    __slots__ = ()

    def leaves(self) -> tuple[Node, ...]:
        """The nodes without structure that this one stands for, in order."""
        return (self,)

    def __add__(self, other: object) -> ExprList:
        return ExprList((*self.leaves(), *as_node(other).leaves()))

    def __radd__(self, other: object) -> ExprList:
        return ExprList((*as_node(other).leaves(), *self.leaves()))


@dataclass(frozen=True, slots=True)
class ExprList(Node):
    """Nodes one after the other."""

    items: tuple[Node, ...]

    def leaves(self) -> tuple[Node, ...]:
        """Those of every item."""
        return tuple(leaf for item in self.items for leaf in item.leaves())


@dataclass(frozen=True, slots=True)
class Text(Node):
    """The program's own text; never parsed for special tokens."""

    text: str


@dataclass(frozen=True, slots=True)
class Gen(Node):
    """Text that the model writes."""

    name: str | None
    changes: Mapping[str, Any]  # fields of SamplingParams that differ from the run's
    type: Any = None  # what the variable's value is; None: the text
    tools: Toolbox | None = None  # set: the value is the calls in the text
    choices: tuple[str, ...] = ()  # of a select whose model writes one of them
    reasoning: ReasoningFormat | None = None  # set: it is kept apart from the answer
    timeout: float | None = None  # seconds, of each attempt
    retry: Retry | None = None  # None: as the run has it


@dataclass(frozen=True, slots=True)
class Select(Node):
    """The choice that the model finds most likely."""

    name: str | None
    choices: tuple[str, ...]
    method: ChoicesSamplingMethod
    temperature: float = 0.0  # above 0: drawn, not the best
    seed: int | None = None  # of the draw
    calibration: str | None = None  # a text that should favour none of the choices
    timeout: float | None = None
    retry: Retry | None = None


@dataclass(frozen=True, slots=True)
class Argument(Node):
    """An argument of a program that is only traced: it can be appended, and nothing else."""

    name: str

    def __str__(self) -> str:
        raise TypeError(f"the argument {self.name} has no text while the program is traced")

    def __format__(self, _: str) -> str:
        return str(self)


@dataclass(frozen=True, slots=True)
class RoleBegin(Node):
    """The start of a turn."""

    role: str


@dataclass(frozen=True, slots=True)
class RoleEnd(Node):
    """The end of a turn."""

    role: str


@dataclass(frozen=True, slots=True)
class ScopeBegin(Node):
    """Where a variable's text starts."""


@dataclass(frozen=True, slots=True)
class ScopeEnd(Node):
    """Where the text of the innermost open scope ends."""

    name: str


@dataclass(frozen=True, slots=True)
class Append(Node):
    """What branches added since their fork."""

    pieces: Prompt
    text: str


@dataclass(frozen=True, slots=True)
class Fail(Node):
    """Ends the state with an error from elsewhere: the body's, or a joined branch's."""

    error: Exception


def as_node(value: object) -> Node:
    """The node that a value stands for: text, or a node itself.

    Raises:
        InvalidRequest: it is neither.
    """
    if isinstance(value, Node):
        return value
    if isinstance(value, str):
        return Text(value)
    raise InvalidRequest(
        f"a program appends text or an expression such as gen(...), not {value!r} "
        f"({type(value).__name__}); for its text write str(...)"
    )
