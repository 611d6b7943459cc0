r"""What `^ $ \A \Z \b \B` ask of the characters around them.

A set of characters that may come next is a mask of kinds. What came before is one kind, or START.
The last newline is a kind of its own: `$` stands before it.
"""

from __future__ import annotations

import re
from re import _constants as ops  # type: ignore[attr-defined]
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from branchline.runtime.grammar.pattern import Anchor

# What comes next; the first three and OTHER are also what came before.
ASCII_WORD = 1
WORD = 2  # a word character that ASCII does not have
NEWLINE = 4  # with more after it
OTHER = 8
END = 16
LAST_NEWLINE = 32  # the text ends after it
ANYTHING = 63
START = 0  # before the first character

# Until Python 3.14, \B did not match in an empty text.
_EMPTY_HAS_NO_BOUNDARY = re.fullmatch(r"\B", "") is not None


def after(anchor: Anchor, before: int, allowed: int) -> int:
    """What may come next where `anchor` holds too; 0 where it cannot hold.

    Args:
        anchor: the condition.
        before: the kind of the character before the position, or START.
        allowed: the kinds that might come next so far.
    """
    kind = anchor.kind
    if kind in {ops.AT_BEGINNING, ops.AT_BEGINNING_STRING}:
        lines = kind is ops.AT_BEGINNING and anchor.multiline
        return allowed if before == START or (lines and before == NEWLINE) else 0
    if kind is ops.AT_END:
        return allowed & (END | LAST_NEWLINE | (NEWLINE if anchor.multiline else 0))
    if kind is ops.AT_END_STRING:
        return allowed & END
    word = ASCII_WORD if anchor.ascii else ASCII_WORD | WORD
    changes = ANYTHING & ~word if before & word else word
    if kind is ops.AT_BOUNDARY:
        return allowed & changes
    if before == START and not _EMPTY_HAS_NO_BOUNDARY:
        allowed &= ~END
    return allowed & ~changes


def beyond(kind: int, allowed: int) -> int:
    """What may follow a character of `kind` where `allowed` might come next; 0: not this one."""
    if kind != NEWLINE:
        return ANYTHING if allowed & kind else 0
    end = END if allowed & LAST_NEWLINE else 0
    return end | (ANYTHING & ~END if allowed & NEWLINE else 0)
