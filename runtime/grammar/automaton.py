"""The smallest deterministic automaton of a pattern, over classes of characters.

Every state can still reach a match, so whatever is allowed can be completed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from branchline.runtime.grammar import anchors, characters
from branchline.runtime.grammar.classes import partition
from branchline.runtime.grammar.minimize import merge_columns, minimize

if TYPE_CHECKING:
    from branchline.runtime.grammar.pattern import Automaton

MAX_STATES = 20_000
MAX_TRANSITIONS = 8_000_000  # states × classes, before any are merged
MAX_WORK = 1_000_000  # steps of the construction; about a second


@dataclass(frozen=True, slots=True)
class CharAutomaton:
    """States are numbered from 1, the start; 0 is the dead one. Class 0 leads nowhere."""

    table: np.ndarray  # int32 [states, classes]
    accepting: np.ndarray  # bool [states]
    starts: np.ndarray  # int32 [runs]: where each run of characters of one class begins
    classes: np.ndarray  # int32 [runs]: its class


def determinize(pattern: Automaton) -> CharAutomaton:
    """The automaton that accepts what `pattern` matches.

    Raises:
        ValueError: nothing matches, or the automaton is too large.
    """
    construction = _Construction(pattern)
    construction.run()
    table, accepting = _trimmed(construction.table(), np.array(construction.accepting, bool))
    if len(table) == 1:
        raise ValueError("it matches no text at all")
    table, merged = merge_columns(table)
    table, accepting = minimize(table, accepting)
    table, again = merge_columns(table)
    classes = construction.classes
    return CharAutomaton(
        table, accepting, np.array(classes.starts, np.int32), again[merged[classes.ids]]
    )


# A node that consumes a character (or node 0, the match), and what may come next there.
_Item = tuple[int, int]


class _Construction:
    """Sets of the pattern's nodes become states; a set that comes again is the same state."""

    def __init__(self, pattern: Automaton) -> None:
        self._pattern = pattern
        sets = list(pattern.sets)
        if pattern.anchors:  # a class is of one kind
            word = characters.category(r"\w", 0)
            ascii_word = characters.union(one for one in word if one[1] < 128)
            sets += [ascii_word, word, characters.NEWLINE]
        self.classes = partition(sets)
        self._kinds = self._kind_of_classes(sets)
        self._closures: dict[tuple[_Item, int], frozenset[_Item]] = {}
        self._kernels: dict[tuple[frozenset[_Item], int], int] = {}
        self._ids: dict[frozenset[_Item], int] = {}
        self._states: list[frozenset[_Item]] = []
        self._rows: list[dict[int, int]] = []
        self.accepting = [False]
        self._work = 0

    def run(self) -> None:
        """Find every state and where each class leads from it."""
        start = (self._pattern.start, anchors.ANYTHING)
        before = anchors.START if self._pattern.anchors else anchors.OTHER
        self._state(frozenset([start]), before)
        while len(self._rows) < len(self._states):
            kernels = self._reached(self._states[len(self._rows)])
            row = {
                one: self._state(frozenset(kernel), self._kinds[one])
                for one, kernel in kernels.items()
            }
            self._rows.append(row)

    def table(self) -> np.ndarray:
        """Where each class leads from each state, 0 for nowhere; int32 [states + 1, classes]."""
        shape = (len(self._rows) + 1, self.classes.count)
        if shape[0] * shape[1] > MAX_TRANSITIONS:
            raise ValueError(
                f"its automaton has {shape[0]} states over {shape[1]} classes of characters; "
                f"at most {MAX_TRANSITIONS} for the product"
            )
        table = np.zeros(shape, np.int32)
        for state, row in enumerate(self._rows, 1):
            table[state, list(row)] = list(row.values())
        return table

    def _kind_of_classes(self, sets: list[characters.Ranges]) -> list[int]:
        kinds = [anchors.OTHER] * self.classes.count
        if self._pattern.anchors:
            ascii_word, word, newline = self.classes.members[len(sets) - 3 :]
            for members, kind in (
                (word, anchors.WORD),
                (ascii_word, anchors.ASCII_WORD),
                (newline, anchors.NEWLINE),
            ):
                for one in members:
                    kinds[one] = kind
        return kinds

    def _reached(self, state: frozenset[_Item]) -> dict[int, set[_Item]]:
        """For each class, the nodes that a character of it leads to."""
        consumes, members, kinds = self._pattern.consumes, self.classes.members, self._kinds
        reached: dict[int, set[_Item]] = {}
        for node, allowed in state:
            if node == 0:
                continue
            which, then = consumes[node]
            self._spend(len(members[which]))
            for one in members[which]:
                follows = anchors.beyond(kinds[one], allowed) if self._pattern.anchors else allowed
                if follows:
                    reached.setdefault(one, set()).add((then, follows))
        return reached

    def _state(self, kernel: frozenset[_Item], before: int) -> int:
        """The number of the state that these nodes make, after a character of kind `before`."""
        known = self._kernels.get((kernel, before))
        if known is not None:
            return known
        items = frozenset().union(*(self._closure(item, before) for item in kernel))
        self._spend(len(items))
        state = self._ids.get(items)
        if state is None:
            state = self._ids[items] = len(self._ids) + 1
            if state > MAX_STATES:
                raise ValueError(f"its automaton has more than {MAX_STATES} states")
            self._states.append(items)
            self.accepting.append(
                any(node == 0 and allowed & anchors.END for node, allowed in items)
            )
        self._kernels[kernel, before] = state
        return state

    def _closure(self, item: _Item, before: int) -> frozenset[_Item]:
        """The items that `item` leads to without a character."""
        known = self._closures.get((item, before))
        if known is not None:
            return known
        pattern, found, waiting, seen = self._pattern, set(), [item], {item}
        while waiting:
            node, allowed = waiting.pop()
            ways: list[_Item] = []
            if node in pattern.splits:
                ways = [(way, allowed) for way in pattern.splits[node]]
            elif node in pattern.anchors:
                anchor, then = pattern.anchors[node]
                follows = anchors.after(anchor, before, allowed)
                ways = [(then, follows)] if follows else []
            else:
                found.add((node, allowed))
            waiting += [way for way in ways if way not in seen]
            seen.update(ways)
        self._spend(len(seen))
        closure = self._closures[item, before] = frozenset(found)
        return closure

    def _spend(self, work: int) -> None:
        self._work += work
        if self._work > MAX_WORK:
            raise ValueError(f"its automaton takes more than {MAX_WORK} steps to build")


def _trimmed(table: np.ndarray, accepting: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Without the states from which no match can be reached."""
    sources, targets = _edges(table)
    order = np.argsort(targets, kind="stable")
    sources, targets = sources[order], targets[order]
    live = accepting.copy()
    frontier = np.flatnonzero(live)
    while len(frontier):
        begins = np.searchsorted(targets, frontier, "left")
        ends = np.searchsorted(targets, frontier, "right")
        spans = [sources[begin:end] for begin, end in zip(begins, ends, strict=True)]
        reached = np.unique(np.concatenate(spans))
        frontier = reached[~live[reached]]
        live[frontier] = True
    live[0] = True
    if not live[1]:
        return table[:1], accepting[:1]
    numbers = np.where(live, np.cumsum(live) - 1, 0).astype(np.int32)
    return numbers[table[live]], accepting[live]


def _edges(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    sources, columns = np.nonzero(table)
    return sources, table[sources, columns]
