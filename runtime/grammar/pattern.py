"""A regular expression in Python's syntax, as a nondeterministic automaton over characters.

`re` parses the pattern, so syntax and flags are exactly those of this Python. What a regular
language cannot say is refused by name.
"""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass, field

# The parser behind `re.compile` has no public name; its tree has been the same since Python 3.11.
from re import _constants as ops  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import TYPE_CHECKING, Any

from branchline.runtime.grammar import characters

if TYPE_CHECKING:
    from branchline.runtime.grammar.characters import Ranges

MAX_POSITIONS = 50_000  # of a pattern with its repetitions written out

_REFUSED = {
    ops.ASSERT: "look-ahead or look-behind",
    ops.ASSERT_NOT: "negative look-ahead or look-behind",
    ops.GROUPREF: "a back-reference",
    ops.GROUPREF_EXISTS: "a conditional group",
    ops.ATOMIC_GROUP: "an atomic group",
    ops.POSSESSIVE_REPEAT: "a possessive quantifier",
}
_SINGLE = {ops.LITERAL, ops.NOT_LITERAL, ops.ANY, ops.IN}
_ESCAPES = {
    ops.CATEGORY_DIGIT: r"\d",
    ops.CATEGORY_NOT_DIGIT: r"\D",
    ops.CATEGORY_SPACE: r"\s",
    ops.CATEGORY_NOT_SPACE: r"\S",
    ops.CATEGORY_WORD: r"\w",
    ops.CATEGORY_NOT_WORD: r"\W",
}


@dataclass(frozen=True, slots=True)
class Anchor:
    """A position that must be of some kind: one of `re`'s AT codes, and the flags around it."""

    kind: int
    multiline: bool
    ascii: bool


@dataclass(slots=True)
class Automaton:
    """Nodes of three kinds; an output matches if its characters lead from `start` to node 0.

    Attributes:
        sets: the distinct sets of characters.
        consumes: the set that a node takes one character from, and where it leads then.
        splits: where a node leads without a character.
        anchors: the condition under which a node leads on without a character.
    """

    start: int = 0
    size: int = 1
    sets: list[Ranges] = field(default_factory=list)
    consumes: dict[int, tuple[int, int]] = field(default_factory=dict)
    splits: dict[int, list[int]] = field(default_factory=dict)
    anchors: dict[int, tuple[Anchor, int]] = field(default_factory=dict)

    def node(self) -> int:
        """A new node."""
        self.size += 1
        return self.size - 1


def parse(source: str) -> Automaton:
    """The automaton of a pattern.

    Raises:
        ValueError: the pattern is not Python's syntax, is refused, or has too many positions.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what may change in a later Python means today's now
            tree = parser.parse(source)
            positions = _positions(tree)
            if positions > MAX_POSITIONS:
                raise ValueError(
                    f"it has {positions} positions when its repetitions are written out; "
                    f"at most {MAX_POSITIONS}"
                )
            return _Builder().build(tree)
    except (re.error, OverflowError) as error:
        raise ValueError(f"not a regular expression: {error}") from error
    except RecursionError:
        raise ValueError("its groups are nested too deeply") from None


def _positions(tree: Any) -> int:
    """How many nodes `tree` takes, at least; a bound before anything is built."""
    total = 0
    for op, argument in tree:
        if op in _REFUSED:
            raise ValueError(f"it has {_REFUSED[op]}, which is not supported")
        if op in {ops.MAX_REPEAT, ops.MIN_REPEAT}:
            low, high, inner = argument
            times = low + 1 if high is ops.MAXREPEAT else high
            total += max(1, times) * max(1, _positions(inner))
        elif op is ops.BRANCH:
            total += 1 + sum(map(_positions, argument[1]))
        elif op is ops.SUBPATTERN:
            total += _positions(argument[3])
        else:
            total += 1
    return total


class _Builder:
    """Builds from the end: each piece is given the node that follows it."""

    def __init__(self) -> None:
        self._made = Automaton()
        self._set_ids: dict[Ranges, int] = {}

    def build(self, tree: Any) -> Automaton:
        self._made.start = self._sequence(tree, 0, tree.state.flags)
        self._made.sets = list(self._set_ids)
        return self._made

    def _sequence(self, tree: Any, then: int, flags: int) -> int:
        for op, argument in reversed(list(tree)):
            then = self._piece(op, argument, then, flags)
        return then

    def _piece(self, op: Any, argument: Any, then: int, flags: int) -> int:
        """The node where the piece begins."""
        if op in _SINGLE:
            return self._single(_set_of(op, argument, flags), then)
        if op is ops.SUBPATTERN:
            _, added, removed, inner = argument
            return self._sequence(inner, then, _scoped(flags, added, removed))
        if op is ops.BRANCH:
            return self._split([self._sequence(one, then, flags) for one in argument[1]])
        if op in {ops.MAX_REPEAT, ops.MIN_REPEAT}:
            low, high, inner = argument
            return self._repeat(low, high, inner, then, flags)
        if op is ops.AT:
            node = self._made.node()
            anchor = Anchor(argument, bool(flags & re.MULTILINE), bool(flags & re.ASCII))
            self._made.anchors[node] = (anchor, then)
            return node
        raise ValueError(f"it has {op}, which is not supported")

    def _single(self, ranges: Ranges, then: int) -> int:
        node = self._made.node()
        which = self._set_ids.setdefault(ranges, len(self._set_ids))
        self._made.consumes[node] = (which, then)
        return node

    def _split(self, ways: list[int]) -> int:
        node = self._made.node()
        self._made.splits[node] = ways
        return node

    def _repeat(self, low: int, high: Any, inner: Any, then: int, flags: int) -> int:
        if high is ops.MAXREPEAT:
            start = self._split([])
            self._made.splits[start] = [self._sequence(inner, start, flags), then]
        else:
            start = then
            for _ in range(high - low):
                start = self._split([self._sequence(inner, start, flags), then])
        for _ in range(low):
            start = self._sequence(inner, start, flags)
        return start


def _scoped(flags: int, added: int, removed: int) -> int:
    if added & (re.ASCII | re.UNICODE):  # one takes the other's place
        flags &= ~(re.ASCII | re.UNICODE)
    return (flags | added) & ~removed


def _set_of(op: Any, argument: Any, flags: int) -> Ranges:
    """The characters that one single-character piece matches."""
    if op is ops.ANY:
        every = flags & re.DOTALL
        return characters.EVERYTHING if every else characters.complement(characters.NEWLINE)
    items = argument if op is ops.IN else [(op, argument)]
    negated = items[0][0] in {ops.NEGATE, ops.NOT_LITERAL}
    members = [item for item in items if item[0] is not ops.NEGATE]
    plain = characters.union(one for item in members for one in _members(item, flags))
    plain = characters.complement(plain) if negated else plain
    if not flags & re.IGNORECASE:
        return plain
    source = f"[{'^' if negated else ''}{''.join(map(_source, members))}]"
    return characters.ignoring_case(source, plain, int(flags & (re.IGNORECASE | re.ASCII)))


def _members(item: tuple[Any, Any], flags: int) -> Ranges:
    kind, value = item
    if kind is ops.RANGE:
        return (tuple(value),)
    if kind is ops.CATEGORY:
        return characters.category(_ESCAPES[value], int(flags & re.ASCII))
    return ((value, value),)


def _source(item: tuple[Any, Any]) -> str:
    kind, value = item
    if kind is ops.RANGE:
        low, high = (f"\\U{edge:08x}" for edge in value)
        return f"{low}-{high}"
    return _ESCAPES[value] if kind is ops.CATEGORY else f"\\U{value:08x}"
