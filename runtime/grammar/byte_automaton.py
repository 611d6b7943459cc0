r"""The automaton of a pattern over UTF-8 bytes.

::

    a place      =  (state, prefix)         state: of the automaton over characters
                                            prefix: the bytes of a character that has begun
    é in state 3:   (3, "")  ─C3→  (3, "C3")  ─A9→  (table[3, class of é], "")

The product of states and prefixes is never built: `\w{1,500}` alone would have 150,000 places. A
prefix knows which classes its bytes can still become, so a place is dead as soon as no character
that the state takes begins with them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from branchline.runtime.grammar.automaton import CharAutomaton

_CODE_POINTS = 17 * 0x10000
_BLOCK = 64  # code points of one last byte


class ByteAutomaton:
    """A place is one number, state × prefixes + prefix; 0 is dead, `start` is where texts begin."""

    def __init__(self, automaton: CharAutomaton) -> None:
        self.table = automaton.table
        self.accepting_states = automaton.accepting
        self.starts, self.classes = automaton.starts, automaton.classes
        # int32 [prefixes, 256]: the next prefix, or prefixes + the class of the finished character
        lengths = np.diff(automaton.starts, append=_CODE_POINTS).clip(0)
        self.next_prefix = _Prefixes().build(np.repeat(automaton.classes, lengths))
        self.prefixes = len(self.next_prefix)
        self.start = self.prefixes  # state 1, no bytes
        self._alive = self._live_places()

    def step(self, places: np.ndarray, data: np.ndarray) -> np.ndarray:
        """Where each byte leads from each place; 0 where it must not come.

        Args:
            places: int [n].
            data: uint8 [n].
        """
        states, prefixes = np.divmod(places, self.prefixes)
        after = self.next_prefix[prefixes, data]
        begun = after < self.prefixes
        finished = self.table[states, np.where(begun, 0, after - self.prefixes)]
        prefix = np.where(begun, after, 0)
        going_on = begun & self._alive[states, prefix]
        return np.where(going_on, states * self.prefixes + prefix, finished * self.prefixes)

    def advance(self, place: int, text: bytes) -> int:
        """The place after some bytes, 0 as soon as one must not come."""
        for byte in text:
            state, prefix = divmod(place, self.prefixes)
            after = int(self.next_prefix[prefix, byte])
            if after >= self.prefixes:
                place = int(self.table[state, after - self.prefixes]) * self.prefixes
            elif self._alive[state, after]:
                place = state * self.prefixes + after
            else:
                return 0
        return place

    def state(self, place: int) -> int | None:
        """The state at a place between two characters; None inside one."""
        state, prefix = divmod(place, self.prefixes)
        return None if prefix else state

    def accepting(self, place: int) -> bool:
        """Whether a text may end at a place."""
        state = self.state(place)
        return state is not None and bool(self.accepting_states[state])

    def classes_of(self, characters: np.ndarray) -> np.ndarray:
        """The class of each code point."""
        return self.classes[np.searchsorted(self.starts, characters, "right") - 1]

    def _live_places(self) -> np.ndarray:
        """Whether a state takes any character that a prefix can become; bool [states, prefixes].

        Prefix 0 counts as dead here: it is where a character is finished, not where one goes on.
        """
        count = self.table.shape[1]
        becomes = np.zeros((self.prefixes, count), np.float32)
        for prefix in range(self.prefixes - 1, 0, -1):  # one goes on to higher numbers only
            after = self.next_prefix[prefix]
            becomes[prefix, after[after >= self.prefixes] - self.prefixes] = 1
            inner = np.unique(after[(after > 0) & (after < self.prefixes)])
            becomes[prefix] = np.maximum(becomes[prefix], becomes[inner].max(axis=0, initial=0))
        takes = (self.table > 0).astype(np.float32)
        alive: np.ndarray = takes @ becomes.T > 0
        return alive


class _Prefixes:
    """The tree of UTF-8 with the classes at its leaves; equal branches are one node.

    While it grows, a node is a negative number and a class is its own; 0 leads nowhere.
    """

    def __init__(self) -> None:
        self._rows: list[np.ndarray] = []
        self._known: dict[bytes, int] = {}

    def build(self, classes: np.ndarray) -> np.ndarray:
        """`next_prefix` of the class of every code point; int32 [code points]."""
        root = np.zeros(256, np.int32)
        root[:0x80] = classes[:0x80]
        if classes[0x80:].any():
            one = self._last_bytes(classes.reshape(-1, _BLOCK))
            root[0xC2:0xE0] = one[2:0x20]
            one[:0x20] = 0  # written in two bytes, not in three
            two = np.array([self._node(row) for row in one.reshape(-1, _BLOCK)], np.int32)
            root[0xE0:0xF0] = two[:0x10]
            two[:0x10] = 0  # in three, not in four
            for lead in range(5):
                root[0xF0 + lead] = self._node(two[lead * _BLOCK : (lead + 1) * _BLOCK])
        rows = np.stack([root, *reversed(self._rows)])
        # Node −1 was made first and is the last row; a class comes after all rows.
        return (rows + len(rows)).astype(np.int32)

    def _last_bytes(self, blocks: np.ndarray) -> np.ndarray:
        """The node of each block of characters that differ in their last byte alone."""
        first = blocks[:, 0]
        uniform = (blocks == first[:, None]).all(axis=1)
        found = np.unique(first[uniform]).tolist()
        whole = {one: self._node(np.full(_BLOCK, one)) for one in found}
        nodes = [
            whole[one] if same else self._node(row)
            for one, same, row in zip(first.tolist(), uniform.tolist(), blocks, strict=True)
        ]
        return np.array(nodes, np.int32)

    def _node(self, following: np.ndarray) -> int:
        """The node whose continuation bytes lead to `following`, from the first on."""
        if not following.any():
            return 0
        row = np.zeros(256, np.int32)
        row[0x80 : 0x80 + len(following)] = following
        number = self._known.setdefault(row.tobytes(), -1 - len(self._rows))
        if number == -1 - len(self._rows):
            self._rows.append(row)
        return number
