"""Merges what no text can tell apart: states (Hopcroft 1971), then classes of characters."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable


def minimize(table: np.ndarray, accepting: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The same automaton with the fewest states.

    Args:
        table: int32 [states, classes]; state 0 is dead, 1 the start.
        accepting: bool [states].
    """
    blocks = _blocks(table, accepting)
    # The dead state's block is 0, the start's 1, the others follow their first states.
    leaders = {int(blocks[0]): 0, int(blocks[1]): 1}
    for block in blocks.tolist():
        leaders.setdefault(block, len(leaders))
    numbers = np.array([leaders[block] for block in blocks.tolist()], np.int32)
    _, first = np.unique(numbers, return_index=True)
    return numbers[table[first]], accepting[first]


def merge_columns(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """One column for each class that differs from the others.

    Returns:
        The table whose column 0 leads nowhere, and the new number of each old class.
    """
    padded = np.concatenate([np.zeros((len(table), 1), np.int32), table], axis=1)
    known: dict[bytes, int] = {}
    numbers = [
        known.setdefault(column.tobytes(), len(known)) for column in np.ascontiguousarray(padded.T)
    ]
    _, first = np.unique(numbers, return_index=True)
    return np.ascontiguousarray(padded[:, first]), np.array(numbers[1:], np.int32)


def _blocks(table: np.ndarray, accepting: np.ndarray) -> np.ndarray:
    """The block of each state: states are in one if the same texts lead from both to a match."""
    arriving = _arriving(table)
    block_of = accepting.astype(int).tolist()
    members = [set(np.flatnonzero(~accepting).tolist()), set(np.flatnonzero(accepting).tolist())]
    waiting = {0, 1}
    while waiting:
        splitter = waiting.pop()
        by_class: dict[int, list[int]] = defaultdict(list)
        for state in members[splitter]:
            for one, source in arriving[state]:
                by_class[one].append(source)
        for sources in by_class.values():
            for block, inside in _touched(sources, block_of).items():
                if len(inside) < len(members[block]):
                    waiting.add(_split(block, inside, members, block_of))
    return np.array(block_of)


def _arriving(table: np.ndarray) -> list[list[tuple[int, int]]]:
    """For each state, the class and source of every edge that leads to it.

    Edges to the dead state need no entry: a state whose live edges go where another's go has the
    same dead ones.
    """
    arriving: list[list[tuple[int, int]]] = [[] for _ in table]
    sources, classes = np.nonzero(table)
    targets = table[sources, classes].tolist()
    for source, one, target in zip(sources.tolist(), classes.tolist(), targets, strict=True):
        arriving[target].append((one, source))
    return arriving


def _touched(sources: Iterable[int], block_of: list[int]) -> dict[int, list[int]]:
    touched: dict[int, list[int]] = defaultdict(list)
    for source in sources:
        touched[block_of[source]].append(source)
    return touched


def _split(block: int, inside: list[int], members: list[set[int]], block_of: list[int]) -> int:
    """Cut a block in two; returns the new one, which must still split others.

    The new one is the smaller: that keeps all splits together cheap.
    """
    part = set(inside)
    rest = members[block] - part if len(part) * 2 > len(members[block]) else None
    if rest is None:
        members[block] -= part
    else:
        members[block], part = part, rest
    new = len(members)
    members.append(part)
    for state in part:
        block_of[state] = new
    return new
