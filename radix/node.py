"""A node of the radix tree, and what a match answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Protocol, Self, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from branchline.radix.pages import PageArray

TokenArray: TypeAlias = npt.NDArray[np.int32]
TokenIds: TypeAlias = Sequence[int] | TokenArray
"""Token ids as callers have them. Arrays of int32 are compared without a copy."""

EMPTY: npt.NDArray[np.int32] = np.empty(0, dtype=np.int32)


class Run(Protocol):
    """A run of tokens in any tree whose children are kept by their first token."""

    @property
    def tokens(self) -> TokenArray:
        """The run."""

    @property
    def children(self) -> Mapping[int, Self]:
        """The runs that follow it."""


AnyRun = TypeVar("AnyRun", bound=Run)


class Standing(IntEnum):
    """What a cached run is worth, by what is known of the future: lower ones are evicted first."""

    ENDED = 0  # nobody has used it since those who did have ended
    UNKNOWN = 1  # nobody said anything
    NEEDED = 2  # somebody will go on from here, or from below
    SHARED = 3  # several will go on from the end of it


@dataclass(eq=False, slots=True, weakref_slot=True)
class Node:
    """A run of cached tokens. A root, and a node that has left the tree, hold no tokens.

    Callers read nodes; only the tree changes them.
    """

    tokens: TokenArray
    pages: PageArray  # of the tokens, one each
    parent: Node | None = field(repr=False)
    end: int  # tokens from the root to the end of this run
    serial: int  # order of creation
    children: dict[int, Node] = field(default_factory=dict, repr=False)  # by their first token
    locks: int = 0  # held on this node and on the nodes below it
    subtree: int = 0  # tokens in it and in the nodes below it
    last_use: int = 0  # the tree's counter when the end of this run was last reached
    needs: int = 0  # how many said that they go on from here, or from a node below
    needs_here: int = 0  # of those, how many from its end as it is now
    ended: bool = False  # who used it last has ended
    queued: int = 0  # a bit for each standing under which the eviction queue has an entry

    @property
    def start(self) -> int:
        """Tokens from the root to the beginning of this run."""
        return self.end - len(self.tokens)

    @property
    def in_tree(self) -> bool:
        """Whether it is a root, or has not been evicted."""
        return self.end == 0 or len(self.tokens) > 0

    @property
    def is_candidate(self) -> bool:
        """Whether eviction may take it now: an unlocked leaf."""
        return self.locks == 0 and not self.children and len(self.tokens) > 0

    @property
    def standing(self) -> Standing:
        """What it is worth."""
        if self.needs:
            return Standing.SHARED if self.needs_here > 1 else Standing.NEEDED
        return Standing.ENDED if self.ended else Standing.UNKNOWN


@dataclass(frozen=True, slots=True)
class Match:
    """The longest cached prefix of some tokens."""

    node: Node  # ends exactly where the match does
    length: int  # matched tokens, counted from the node the match started at
    pages: PageArray  # of the matched tokens


def upward(node: Node | None) -> Iterator[Node]:
    """`node` and its ancestors, up to the root."""
    while node is not None:
        yield node
        node = node.parent


def subtree(node: Node) -> Iterator[Node]:
    """`node` and all below it, parents first. A loop, because paths can be deep."""
    pending = [node]
    while pending:
        node = pending.pop()
        yield node
        pending.extend(node.children.values())


def descend(node: AnyRun, tokens: TokenIds) -> tuple[list[AnyRun], int]:
    """The runs below `node` that `tokens` run through, and how many of the tokens they share.

    The last of the runs may be shared only in part.
    """
    path: list[AnyRun] = []
    length = 0
    while length < len(tokens):
        child = node.children.get(int(tokens[length]))
        if child is None:
            break
        path.append(child)
        common = _common_length(child.tokens, tokens[length : length + len(child.tokens)])
        length += common
        if common < len(child.tokens):
            break
        node = child
    return path, length


def join(runs: Sequence[npt.NDArray[np.int32]]) -> npt.NDArray[np.int32]:
    """The runs as one array; also of no runs."""
    return np.concatenate(runs) if runs else EMPTY


def _common_length(left: TokenArray, right: TokenIds) -> int:
    """How many leading tokens of the two are the same."""
    count = min(len(left), len(right))
    differ = left[:count] != np.asarray(right[:count], dtype=np.int32)
    first = int(differ.argmax()) if count else 0
    return first if count and differ[first] else count
