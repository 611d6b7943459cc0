"""One step's work, planned on the host: which positions of which requests are computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from branchline.radix import PADDING_PAGE

if TYPE_CHECKING:
    from branchline.runtime.memory import Patch
    from branchline.runtime.request import Request

FROM_DEVICE = -1  # an input id that only the device knows yet: read `last_token[slot]`


@dataclass(frozen=True, slots=True)
class Row:
    """The positions [start, end) of one request. It carries the request, not only the slot."""

    request: Request
    slot: int
    start: int
    end: int
    write_from: (
        int  # earlier positions are the tree's: recomputed for their logits, written nowhere
    )
    samples: bool  # a token is drawn after the last position
    logits_from: (
        int  # positions [logits_from, logits_to) have their logits kept for the prompt's logprobs
    )
    logits_to: int

    @property
    def logprob_count(self) -> int:
        """How many prompt logprobs this row brings."""
        return max(0, self.logits_to - self.logits_from)


@dataclass(frozen=True, slots=True)
class Batch:
    """One forward in layer lockstep: T tokens, R rows, M logits; rows of one token come first."""

    rows: tuple[Row, ...]
    patches: tuple[Patch, ...]  # of the page table, applied first
    input_ids: np.ndarray  # int64 [T], FROM_DEVICE where unknown
    positions: np.ndarray  # int64 [T]
    token_slots: np.ndarray  # int64 [T]: the slot of each token's request
    write_pages: np.ndarray  # int64 [T], the padding page where nothing is written
    logit_rows: np.ndarray  # int64 [M]: of T, row by row, the sampled one last
    q_indptr: tuple[int, ...]  # [R + 1]
    kv_lens: tuple[int, ...]  # [R]


def build_batch(rows: list[Row], patches: tuple[Patch, ...], table: np.ndarray) -> Batch:
    """Lay out rows as one batch; `table` is the host's page table, int32 [slots, max_context]."""
    rows = sorted(rows, key=lambda row: row.end - row.start > 1)
    input_ids: list[int] = []
    logit_rows: list[int] = []
    q_indptr = [0]
    for row in rows:
        base = q_indptr[-1] - row.start
        known = row.request.tokens[row.start : row.end]
        input_ids += known
        input_ids += [FROM_DEVICE] * (row.end - row.start - len(known))
        logit_rows += range(base + row.logits_from, base + row.logits_to)
        if row.samples:
            logit_rows.append(base + row.end - 1)
        q_indptr.append(base + row.end)
    counts = [row.end - row.start for row in rows]
    starts = np.repeat(np.array([row.start for row in rows]), counts)
    offsets = np.arange(q_indptr[-1]) - np.repeat(np.array(q_indptr[:-1]), counts)
    positions = starts + offsets
    slots = np.repeat(np.array([row.slot for row in rows]), counts)
    written = positions >= np.repeat(np.array([row.write_from for row in rows]), counts)
    return Batch(
        rows=tuple(rows),
        patches=patches,
        input_ids=np.array(input_ids, dtype=np.int64),
        positions=positions,
        token_slots=slots,
        write_pages=np.where(written, table[slots, positions], PADDING_PAGE).astype(np.int64),
        logit_rows=np.array(logit_rows, dtype=np.int64),
        q_indptr=tuple(q_indptr),
        kv_lens=tuple(row.end for row in rows),
    )
