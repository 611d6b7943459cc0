"""What is sampled after a forward: fixed when it is launched, since the host's lists go on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from branchline.runtime.request import State
from branchline.runtime.sampling import SampleRow

if TYPE_CHECKING:
    from branchline.protocol import TokenLogprob
    from branchline.runtime.batch import Batch, Row


@dataclass(frozen=True, slots=True)
class RowResult:
    """What one row brought."""

    prompt_logprobs: tuple[TokenLogprob, ...]
    token: int | None  # None: nothing was drawn after it
    logprob: TokenLogprob | None  # of the token, with alternatives, if asked


@dataclass(frozen=True, slots=True)
class SampleJob:
    """One row's part of the sampling."""

    logits_at: int  # first of its rows of logits
    targets: tuple[int, ...]  # prompt tokens to score, one for each row of logits but the last
    top: int
    slot: int
    draws: bool
    wants_logprob: bool


def sample_jobs(batch: Batch) -> tuple[tuple[Row, ...], list[SampleJob]]:
    """The rows of a batch whose requests have not ended, and a job for each."""
    kept: list[Row] = []
    jobs: list[SampleJob] = []
    logits_at = 0
    for row in batch.rows:
        if row.request.state is State.RUNNING and not row.request.ended:
            kept.append(row)
            jobs.append(_job(row, logits_at))
        logits_at += row.logprob_count + int(row.samples)
    return tuple(kept), jobs


def _job(row: Row, logits_at: int) -> SampleJob:
    request = row.request
    params = request.params
    targets = request.prompt[row.logits_from + 1 : row.logits_to + 1]
    return SampleJob(
        logits_at=logits_at,
        targets=tuple(targets),
        top=params.top_logprobs,
        slot=row.slot,
        draws=row.draws,
        wants_logprob=row.draws and params.wants_logprobs,
    )


def sample_row(row: Row) -> SampleRow:
    """What the draw after a row's last position depends on.

    Where there is a grammar its mask decides about the ends too, min_tokens included.
    """
    request, params, constraint = row.request, row.request.params, row.request.constraint
    masks_stops = constraint is None and request.output_len < params.min_tokens
    return SampleRow(
        params=params,
        seed=request.seed,
        position=row.end,
        output_len=request.output_len,
        stop_ids=tuple(request.stop_ids) if masks_stops else (),
        prompt_ids=request.known[: len(request.prompt)],
        output_ids=np.array(request.output, dtype=np.int64) if params.has_penalties else None,
        mask=None if constraint is None else constraint.mask,
    )
