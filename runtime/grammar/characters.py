r"""Sets of characters, as Python's `re` understands them.

What `\w`, `\s` or a set under `(?i)` holds is asked of `re` itself, character by character, so it
is what `re.fullmatch` of this Python says and not a table of ours.
"""

from __future__ import annotations

import re
import sys
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

# Ascending, disjoint, not touching; both ends are in.
Ranges = tuple[tuple[int, int], ...]

_SURROGATES = (0xD800, 0xDFFF)  # no text that is written as UTF-8 has them
EVERYTHING: Ranges = ((0, _SURROGATES[0] - 1), (_SURROGATES[1] + 1, sys.maxunicode))
NEWLINE: Ranges = ((10, 10),)


def union(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """The characters in any of some ranges, less the surrogates."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return tuple(part for one in merged for part in _without_surrogates(*one))


def complement(ranges: Ranges) -> Ranges:
    """Every character that is not in `ranges`."""
    edges = [-1, *(edge for one in ranges for edge in one), sys.maxunicode + 1]
    gaps = [(low + 1, high - 1) for low, high in zip(edges[::2], edges[1::2], strict=True)]
    return union((low, high) for low, high in gaps if low <= high)


@lru_cache(256)
def category(escape: str, flags: int) -> Ranges:
    r"""What an escape such as `\w` matches: with re.ASCII in `flags`, or in all of Unicode."""
    return _runs(escape, flags)


@lru_cache(4096)
def ignoring_case(source: str, plain: Ranges, flags: int) -> Ranges:
    """The characters that a set matches under re.IGNORECASE.

    Args:
        source: the set as a pattern for one character.
        plain: what it matches when case counts.
        flags: re.IGNORECASE, and re.ASCII where that is on.
    """
    cased, characters = _cased()
    matched = map(ord, re.findall(source, characters, flags))
    uncased = _difference(plain, cased)
    return union([*uncased, *((one, one) for one in matched)])


@lru_cache(1)
def _cased() -> tuple[Ranges, str]:
    """The characters that have another case: only they match differently when it is ignored."""
    every = map(chr, range(sys.maxunicode + 1))
    found = [one for one in every if one.lower() != one or one.upper() != one]
    return union((ord(one), ord(one)) for one in found), "".join(found)


def _runs(pattern: str, flags: int) -> Ranges:
    text = "".join(map(chr, range(sys.maxunicode + 1)))
    matches = re.finditer(f"{pattern}+", text, flags)
    return union((match.start(), match.end() - 1) for match in matches)


def _difference(ranges: Ranges, removed: Ranges) -> Ranges:
    return complement(union([*complement(ranges), *removed]))


def _without_surrogates(low: int, high: int) -> list[tuple[int, int]]:
    first, last = _SURROGATES
    parts = [(low, min(high, first - 1)), (max(low, last + 1), high)]
    return [(start, end) for start, end in parts if start <= end]
