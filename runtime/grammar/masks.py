"""Which tokens may come at a place of a byte automaton, as masks over the vocabulary."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from branchline.runtime.grammar.byte_automaton import ByteAutomaton
    from branchline.runtime.grammar.vocabulary import Vocabulary

# A level of the trie is walked whole, dead nodes included, if it is no larger than this or if one
# in so many of the nodes above it is alive: that costs less than picking out their children.
_SMALL = 2048
_DENSE = 4
_KEPT_BYTES = 16 * 1024 * 1024  # of one grammar's masks


class MaskMaker:
    """Masks of one automaton over one vocabulary, each computed when it is first asked for.

    Matchers of many requests share it; two threads that compute the same mask do so twice.
    """

    def __init__(self, automaton: ByteAutomaton, vocabulary: Vocabulary) -> None:
        self._automaton = automaton
        self._tries = tries = vocabulary.tries
        self._bits = -(-vocabulary.size // 32) * 32
        self._eos = np.array(sorted(vocabulary.eos), np.int64)
        # A state is the offset of its row: the entry of a class is one addition away.
        self._count = automaton.table.shape[1]
        self._next = (automaton.table.astype(np.int64) * self._count).ravel()
        classes = automaton.classes_of(tries.characters).astype(np.int64)
        self._edges = [classes[level.symbols] for level in tries.whole.levels]
        self._masks: dict[int, np.ndarray] = {}
        self._distinct: dict[bytes, np.ndarray] = {}  # places often share one

    def mask(self, place: int) -> np.ndarray:
        """The tokens that may come at a place; int32 [ceil(vocab_size / 32)], not to be written."""
        mask = self._masks.get(place)
        if mask is None:
            made = self._compute(place)
            if len(self._distinct) * made.nbytes >= _KEPT_BYTES:
                self._masks.clear()
                self._distinct.clear()
            mask = self._masks[place] = self._distinct.setdefault(made.tobytes(), made)
        return mask

    def _compute(self, place: int) -> np.ndarray:
        tries = self._tries
        alive = np.zeros(tries.whole.size + tries.broken.size, bool)
        state = self._automaton.state(place)
        if state is not None:
            self._walk_whole(state, alive[: tries.whole.size])
        self._walk_broken(place, alive[tries.whole.size :])
        allowed = np.zeros(self._bits, bool)
        alive.take(tries.ends, out=allowed[: len(tries.ends)], mode="clip")
        if self._automaton.accepting(place):
            allowed[self._eos] = True
        return np.packbits(allowed, bitorder="little").view(np.int32)

    def _walk_whole(self, state: int, alive: np.ndarray) -> None:
        """Mark the nodes that a state reaches in the trie of whole tokens; not its root."""
        trie = self._tries.whole
        rows = np.array([state * self._count])  # of all nodes of a level, 0 for the dead ones
        live, first_children = np.zeros(1, np.int64), trie.root
        for level, edges in zip(trie.levels, self._edges, strict=True):
            width = len(edges)
            if width <= _SMALL or len(live) * _DENSE > len(rows):
                rows = self._next.take(rows.take(level.parents) + edges)
                live = np.flatnonzero(rows)
            else:
                children, parents = _children(first_children, live)
                reached = self._next.take(rows.take(live).take(parents) + edges.take(children))
                kept = np.flatnonzero(reached)
                live = children.take(kept)
                rows = np.zeros(width, np.int64)
                rows[live] = reached.take(kept)
            if not len(live):
                break
            alive[level.offset + live] = True
            first_children = level.first_children

    def _walk_broken(self, place: int, alive: np.ndarray) -> None:
        """Mark the nodes that a place reaches in the trie of tokens with part of a character."""
        trie = self._tries.broken
        live, places, first_children = np.zeros(1, np.int64), np.array([place]), trie.root
        for level in trie.levels:
            children, parents = _children(first_children, live)
            reached = self._automaton.step(places[parents], level.symbols[children])
            kept = np.flatnonzero(reached)
            live, places = children[kept], reached[kept]
            if not len(live):
                break
            alive[level.offset + live] = True
            first_children = level.first_children


def _children(first_children: np.ndarray, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The children of some nodes of a level, and for each the index of its parent in `nodes`."""
    begins = first_children[nodes]
    counts = first_children[nodes + 1] - begins
    ends = np.cumsum(counts)
    parents = np.repeat(np.arange(len(nodes)), counts)
    children = np.arange(ends[-1] if len(ends) else 0) + (begins - ends + counts)[parents]
    return children, parents
