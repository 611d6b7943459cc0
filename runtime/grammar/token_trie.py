"""A vocabulary's tokens as a trie whose levels are numpy arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Level:
    """The nodes of one depth, in the order of their parents."""

    parents: np.ndarray  # int64 [nodes]: index in the level above
    symbols: np.ndarray  # int64 [nodes]: the symbol on the edge from the parent
    # The children of node i are first_children[i] to first_children[i + 1] of the level below.
    first_children: np.ndarray  # int64 [nodes + 1]
    offset: int  # of its first node, in the numbering of all nodes


class TokenTrie:
    """Tokens by their symbols. Node 0 is the root; nodes are numbered level by level.

    Attributes:
        levels: from depth 1 on.
        root: the first children of level 0, which is the root alone; int64 [2].
        size: how many nodes there are.
        tokens: int64: the ids of all its tokens.
        nodes: int64: the node at which each of them ends.
    """

    def __init__(self, sequences: Mapping[int, np.ndarray]) -> None:
        self.tokens = np.fromiter(sequences, np.int64, len(sequences))
        self.nodes = np.zeros(len(sequences), np.int64)
        lengths = np.array([len(one) for one in sequences.values()], np.int64)
        flat = np.concatenate([np.zeros(0, np.int32), *sequences.values()]).astype(np.int64)
        begins = np.cumsum(lengths) - lengths
        drafts: list[tuple[np.ndarray, np.ndarray]] = []
        at = np.zeros(len(lengths), np.int64)  # the index of each token's node in its level
        self.size = 1
        for depth in range(lengths.max(initial=0)):
            longer = np.flatnonzero(lengths > depth)
            edges = at[longer] << 32 | flat[begins[longer] + depth]
            nodes, at[longer] = np.unique(edges, return_inverse=True)
            drafts.append((nodes >> 32, nodes & 0xFFFFFFFF))
            ending = longer[lengths[longer] == depth + 1]
            self.nodes[ending] = self.size + at[ending]
            self.size += len(nodes)
        self.levels = _levels(drafts)
        self.root = np.array([0, len(drafts[0][0]) if drafts else 0])


def _levels(drafts: list[tuple[np.ndarray, np.ndarray]]) -> list[Level]:
    levels, offset = [], 1
    for depth, (parents, symbols) in enumerate(drafts):
        below = drafts[depth + 1][0] if depth + 1 < len(drafts) else np.zeros(0, np.int64)
        first_children = np.searchsorted(below, np.arange(len(parents) + 1))
        levels.append(Level(parents, symbols, first_children, offset))
        offset += len(parents)
    return levels


@dataclass(frozen=True, slots=True)
class Tries:
    """A vocabulary cut in two, once for all grammars.

    Nearly every token is whole characters. They are walked by characters, which a grammar's states
    are made of; the few that hold a part of one are walked by bytes.
    """

    whole: TokenTrie  # symbols are indices of `characters`
    characters: np.ndarray  # int32: the code points that whole tokens have
    broken: TokenTrie  # symbols are bytes
    # int64 [vocab_size]: the node of each id, those of `broken` after those of `whole`; 0 for what
    # is no text.
    ends: np.ndarray

    @classmethod
    def of(cls, token_bytes: list[bytes | None]) -> Tries:
        """The tries of a vocabulary's tokens."""
        whole: dict[int, np.ndarray] = {}
        broken: dict[int, np.ndarray] = {}
        for i, text in enumerate(token_bytes):
            if text is None:
                continue
            try:
                whole[i] = np.frombuffer(text.decode().encode("utf-32-le"), np.int32)
            except UnicodeDecodeError:
                broken[i] = np.frombuffer(text, np.uint8)
        characters = np.unique(np.concatenate([np.zeros(0, np.int32), *whole.values()]))
        indices = {i: np.searchsorted(characters, one) for i, one in whole.items()}
        tries = TokenTrie(indices), TokenTrie(broken)
        ends = np.zeros(len(token_bytes), np.int64)
        ends[tries[0].tokens] = tries[0].nodes
        ends[tries[1].tokens] = tries[1].nodes + tries[0].size
        return cls(tries[0], characters, tries[1], ends)
