"""The tiles of a batch: all is computed once, and every thread has work."""

from __future__ import annotations

from collections import Counter

import pytest

from branchline.kernels.jit.tiles import lay_out
from branchline.kernels.kernel_set import Segment

SHARED = 40
COUNTS = [1, 33, 2, 70, 1, 1, 5, 1, 1, 1]  # new tokens of each row
LENGTHS = [SHARED + count + 3 * row for row, count in enumerate(COUNTS)]


@pytest.mark.parametrize("threads", [1, 2, 16])
@pytest.mark.parametrize(("group", "kv_heads"), [(3, 3), (1, 16), (100, 2)])
@pytest.mark.parametrize("segments", [(), (Segment(0, SHARED, tuple(range(0, 10, 2))),)])
def test_each_position_is_read_once_for_each_query_and_head(
    threads: int, group: int, kv_heads: int, segments: tuple[Segment, ...]
) -> None:
    indptr = [sum(COUNTS[:row]) for row in range(len(COUNTS) + 1)]
    tiles = lay_out(
        indptr, LENGTHS, list(range(len(COUNTS))), segments, group=group, kv_heads=kv_heads,
        threads=threads,
    )  # fmt: skip
    row_of = [row for row, count in enumerate(COUNTS) for _ in range(count)]
    seen: Counter[tuple[int, int, int]] = Counter()
    for first, count, slot, start, end, head, heads in tiles.runs.tolist():
        for token in tiles.members[first : first + count, 0].tolist():
            shares = slot != row_of[token]
            assert not shares or end <= SHARED, "another row's pages beyond what they share"
            for position in range(start, min(end, int(tiles.positions[token]) + 1)):
                seen.update((token, position, at) for at in range(head, head + heads))
    wanted = {
        (token, position, head)
        for token, last in enumerate(tiles.positions.tolist())
        for position in range(last + 1)
        for head in range(kv_heads)
    }
    assert seen == Counter(wanted)


@pytest.mark.parametrize("kv_heads", [8, 12, 13, 16, 32])
def test_one_row_is_shared_out_by_heads(kv_heads: int) -> None:
    tiles = lay_out([0, 1], [120], [0], (), group=1, kv_heads=kv_heads, threads=16)
    assert len(tiles.runs) == kv_heads
