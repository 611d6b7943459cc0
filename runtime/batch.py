"""One step's work, planned on the host: which positions of which requests are computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from branchline.radix import PADDING_PAGE
from branchline.runtime.request import State

if TYPE_CHECKING:
    from branchline.kernels import Segment
    from branchline.runtime.memory import Patch
    from branchline.runtime.request import Request
    from branchline.runtime.sharing import Sharing

FROM_DEVICE = -1  # an input id that only the device knows yet: read `last_token[slot]`


@dataclass(frozen=True, slots=True)
class Row:
    """The positions [start, end) of one request. It carries the request, not only the slot."""

    request: Request
    slot: int
    start: int
    end: int
    cached_len: int  # earlier positions are the tree's: if computed, for their logits only
    samples: bool  # the logits after the last position are computed, to draw from
    logits_from: int  # [logits_from, logits_to) have their logits kept, for prompt logprobs
    logits_to: int

    @property
    def shareable(self) -> int:
        """The positions before the first query that are the tree's."""
        return min(self.start, self.cached_len)

    @property
    def draws(self) -> bool:
        """Whether the next token is drawn, as far as is known now.

        Not after the request's end, and not where the step before has shown that the grammar leaves
        no choice.
        """
        request = self.request
        alive = request.state is State.RUNNING and not request.ended
        return alive and self.samples and self.end == len(request.tokens)

    @property
    def logprob_count(self) -> int:
        """How many prompt logprobs this row brings."""
        return max(0, self.logits_to - self.logits_from)


@dataclass(frozen=True, slots=True)
class Batch:
    """One forward in layer lockstep: T tokens, R rows, M logits."""

    rows: tuple[Row, ...]
    patches: tuple[Patch, ...]  # of the page table, applied first
    input_ids: np.ndarray  # int64 [T], FROM_DEVICE where unknown
    positions: np.ndarray  # int64 [T]
    token_slots: np.ndarray  # int64 [T]: the slot of each token's request
    write_pages: np.ndarray  # int64 [T], the padding page where nothing is written
    logit_rows: np.ndarray  # int64 [M]: of T, row by row, the sampled one last
    q_indptr: tuple[int, ...]  # [R + 1]
    kv_lens: tuple[int, ...]  # [R]
    segments: tuple[Segment, ...]  # what rows share, to be read once

    @property
    def positions_attended(self) -> int:
        """Positions whose K and V the rows attend to, summed over the rows."""
        return sum(self.kv_lens)

    @property
    def positions_read(self) -> int:
        """Positions whose K and V are read in each layer: a shared one counts once."""
        saved = sum((s.end - s.start) * (len(s.rows) - 1) for s in self.segments)
        return self.positions_attended - saved


def build_batch(
    rows: list[Row], sharing: Sharing, patches: tuple[Patch, ...], table: np.ndarray
) -> Batch:
    """Lay out rows as one batch; `table` is the host's page table, int32 [slots, max_context]."""
    rows = [rows[index] for index in sharing.order]
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
    written = positions >= np.repeat(np.array([row.cached_len for row in rows]), counts)
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
        segments=sharing.segments,
    )
