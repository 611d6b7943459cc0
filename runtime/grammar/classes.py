"""Characters that no set of a pattern tells apart are one class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from branchline.runtime.grammar.characters import Ranges


@dataclass(frozen=True, slots=True)
class Classes:
    """A partition of all characters. Class 0 is in no set.

    Attributes:
        starts: where each run of characters of one class begins; the first is 0.
        ids: the class of each run.
        members: the classes that make up each set.
    """

    starts: list[int]
    ids: list[int]
    members: list[list[int]]

    @property
    def count(self) -> int:
        """How many classes there are."""
        return max(self.ids) + 1


def partition(sets: Sequence[Ranges]) -> Classes:
    """The coarsest partition in which every set is a union of classes."""
    toggles: dict[int, int] = {0: 0}  # where a run begins: the sets that begin or end, as bits
    for which, ranges in enumerate(sets):
        for low, high in ranges:
            toggles[low] = toggles.get(low, 0) ^ (1 << which)
            toggles[high + 1] = toggles.get(high + 1, 0) ^ (1 << which)
    starts, ids, signature = sorted(toggles), [], 0
    known = {0: 0}
    for start in starts:
        signature ^= toggles[start]
        ids.append(known.setdefault(signature, len(known)))
    members: list[list[int]] = [[] for _ in sets]
    for signature, number in known.items():
        for which in _bits(signature):
            members[which].append(number)
    return Classes(starts, ids, members)


def _bits(mask: int) -> Iterator[int]:
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest
