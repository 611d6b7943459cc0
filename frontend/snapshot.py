"""What a state is at one position of its program.

It is an immutable value, so that a fork is only another reference to it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from branchline.program_error import ProgramError
    from branchline.protocol import Piece, Prompt


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a program between two nodes."""

    text: str = ""  # all of it, as a reader sees it
    pieces: Prompt = ()  # the same, as it is sent: text, and the ids that the model wrote
    messages: tuple[tuple[str, str], ...] = ()  # (role, content) of every turn that has ended
    role: str | None = None  # of the open turn
    role_start: int = 0  # where its content starts in the text
    scopes: tuple[int, ...] = ()  # where the text of each open scope starts, outermost first
    error: ProgramError | None = None  # set: nothing more happens to this state

    def add(self, piece: Piece) -> Snapshot:
        """With a piece of text at its end."""
        kind, text = piece
        assert isinstance(text, str), kind
        return self.extend((piece,), text)

    def extend(self, pieces: Prompt, text: str) -> Snapshot:
        """With pieces at its end that read as `text`."""
        return replace(self, text=self.text + text, pieces=joined(self.pieces, pieces))


def joined(head: Prompt, tail: Prompt) -> Prompt:
    """Two prompts in one: empty pieces dropped, neighbours of one kind merged."""
    pieces = list(head)
    for piece in tail:
        if not piece[1]:
            continue
        if pieces and pieces[-1][0] == piece[0]:
            pieces[-1] = _merged(pieces[-1], piece)
        else:
            pieces.append(piece)
    return tuple(pieces)


def added(pieces: Prompt, before: Prompt) -> Prompt:
    """The part of `pieces` after `before`, which is how it starts."""
    if not before:
        return pieces
    last = len(before) - 1
    kind, content = pieces[last]
    rest = content[len(before[last][1]) :]
    return joined((), ((kind, rest), *pieces[last + 1 :]))  # type: ignore[arg-type]


def _merged(first: Piece, second: Piece) -> Piece:
    return (first[0], first[1] + second[1])  # type: ignore[operator,return-value]
