"""What a batch's queries read, before it is cut into tiles: blocks of queries × runs of positions.

Queries that share a segment and follow each other are a run, and so are those of a row with what
the row has for itself. The queries of a run are dealt out to blocks of at most NARROW or WIDE rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from branchline.kernels.triton.tile_shapes import ANYWHERE, LONG, NARROW, WIDE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from branchline.kernels.kernel_set import Segment
    from branchline.kernels.triton.tile_shapes import Geometry

    Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a batch, and the positions of its tokens."""

    start: Ints  # the row's first token
    count: Ints  # its tokens
    kv_len: Ints
    slot: Ints
    positions: Ints  # of every token of the batch

    @classmethod
    def of(cls, q_indptr: Sequence[int], kv_lens: Sequence[int], slots: Sequence[int]) -> Rows:
        """The arguments of `KernelSet.plan`, as arrays."""
        indptr, kv_len = np.array(q_indptr, np.int64), np.array(kv_lens, np.int64)
        count = np.diff(indptr)
        positions = np.arange(indptr[-1]) + np.repeat(kv_len - indptr[1:], count)
        return cls(indptr[:-1], count, kv_len, np.array(slots, np.int64), positions)


@dataclass(frozen=True, slots=True)
class Blocks:
    """Queries that follow each other × the positions [start, end) of a row of the page table."""

    run: Ints  # blocks of a run read the same positions
    token: Ints
    count: Ints
    slot: Ints
    start: Ints
    end: Ints
    position: Ints  # of the first query; ANYWHERE if it sees all
    alone: NDArray[np.bool_]  # nothing but this block has positions of its queries
    narrow: NDArray[np.bool_]


def blocks_of(geometry: Geometry, rows: Rows, segments: Sequence[Segment]) -> Blocks:
    """First the segments' root to leaf, then what is each row's own, but for long extends."""
    first, last, start, end, own_from = _stretches(rows, segments)
    own = np.flatnonzero(rows.count < LONG)
    token = np.concatenate((rows.start[first], rows.start[own]))
    count = np.concatenate((rows.start[last] + rows.count[last], rows.start[own] + rows.count[own]))
    count -= token
    slot = rows.slot[np.concatenate((first, own))]
    start = np.concatenate((start, own_from[own]))
    end = np.concatenate((end, rows.kv_len[own]))
    # What a decode's last tile holds grows, and its query sees all of it.
    begin = np.where(rows.count == 1, ANYWHERE, rows.kv_len - rows.count)[own]
    position = np.concatenate((np.full(len(first), ANYWHERE), begin))
    alone = np.concatenate((np.zeros(len(first), np.bool_), own_from[own] == 0))

    narrow = count * geometry.padded_group <= NARROW
    width = np.where(narrow, NARROW, WIDE) // geometry.padded_group  # queries of a block
    blocks = -(-count // width)
    run = np.repeat(np.arange(len(count)), blocks)
    skipped = counter(blocks) * width[run]
    count = np.minimum(width[run], count[run] - skipped)
    position = position[run] + skipped
    return Blocks(
        run=run,
        token=token[run] + skipped,
        count=count,
        slot=slot[run],
        start=start[run],
        end=np.minimum(end[run], position + count),
        position=position,
        alone=alone[run],
        narrow=narrow[run],
    )


def _stretches(rows: Rows, segments: Sequence[Segment]) -> tuple[Ints, Ints, Ints, Ints, Ints]:
    """Neighbours that share a segment: first row, last row, start, end; and own_from [R]."""
    own_from = np.zeros(len(rows.count), np.int64)
    if not segments:
        none = own_from[:0]
        return none, none, none, none, own_from
    member = np.fromiter(chain.from_iterable(s.rows for s in segments), np.int64)
    segment = np.repeat(np.arange(len(segments)), [len(s.rows) for s in segments])
    start = np.array([s.start for s in segments], np.int64)
    end = np.array([s.end for s in segments], np.int64)
    np.maximum.at(own_from, member, end[segment])
    short = rows.count[member] < LONG
    member, segment = member[short], segment[short]
    begins = np.ones(len(member), np.bool_)
    begins[1:] = (np.diff(member) != 1) | (np.diff(segment) != 0)
    ends = np.roll(begins, -1)
    segment = segment[begins]
    return member[begins], member[ends], start[segment], end[segment], own_from


def counter(counts: Ints) -> Ints:
    """0, 1, … counts[0] − 1, then 0, 1, … counts[1] − 1, and so on."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
