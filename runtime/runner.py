"""Runs batches: the page table and the last tokens live on the device, only queued work writes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from branchline.runtime.batch import FROM_DEVICE
from branchline.runtime.models.inputs import ForwardInputs
from branchline.runtime.request import State
from branchline.runtime.sampling import SampleRow, sample, token_logprobs

if TYPE_CHECKING:
    from concurrent.futures import Future

    from torch import Tensor

    from branchline.protocol import TokenLogprob
    from branchline.runtime.batch import Batch, Row
    from branchline.runtime.models.inputs import Model
    from branchline.runtime.request import Request
    from branchline.runtime.streams import Stream


@dataclass(frozen=True, slots=True)
class Forward:
    """A launched forward."""

    batch: Batch
    logits: Future[Tensor]  # float32 [M, vocab]


@dataclass(frozen=True, slots=True)
class RowResult:
    """What one row brought."""

    prompt_logprobs: tuple[TokenLogprob, ...]
    token: int | None  # None: the row does not sample
    logprob: TokenLogprob | None  # of the token, with alternatives, if asked


@dataclass(frozen=True, slots=True)
class Sampled:
    """A launched sampling; rows of requests that had ended at its launch are not in it."""

    rows: tuple[Row, ...]
    results: Future[list[RowResult]]  # one for each row


@dataclass(frozen=True, slots=True)
class _SampleJob:
    """A row's part of the sampling, fixed at launch: the host's lists go on changing."""

    logits_at: int  # first of its rows of logits
    targets: tuple[int, ...]  # prompt tokens to score, one for each row of logits but a sampled one
    top: int
    slot: int
    draw: SampleRow | None
    wants_logprob: bool


class Runner:
    """Launches forwards and samplings for one model on one stream."""

    def __init__(self, model: Model, stream: Stream, slots: int, max_context: int) -> None:
        self._model = model
        self._stream = stream
        # On the stream, because torch fills a large tensor with several threads.
        self._page_table, self._last_token = stream.submit(
            lambda: (
                torch.zeros((slots, max_context), dtype=torch.int64),
                torch.zeros(slots, dtype=torch.int64),
            )
        ).result()

    def forward(self, batch: Batch) -> Forward:
        """Queue the forward of a batch; returns at once."""
        return Forward(batch, self._stream.submit(lambda: self._forward(batch)))

    def sample(self, forward: Forward) -> Sampled:
        """Queue the draw of the next tokens, with the penalties and masks of what is known now."""
        kept: list[Row] = []
        jobs: list[_SampleJob] = []
        logits_at = 0
        for row in forward.batch.rows:
            if row.request.state is State.RUNNING and not row.request.ended:
                kept.append(row)
                jobs.append(_sample_job(row, logits_at))
            logits_at += row.logprob_count + int(row.samples)
        results = self._stream.submit(lambda: self._sample(forward.logits.result(), jobs))
        return Sampled(tuple(kept), results)

    def close(self) -> None:
        """Wait for the device."""
        self._stream.close()

    def _forward(self, batch: Batch) -> Tensor:
        for patch in batch.patches:
            row = self._page_table[patch.slot]
            row[patch.start : patch.start + len(patch.pages)] = torch.from_numpy(patch.pages)
        slots = torch.from_numpy(batch.token_slots)
        input_ids = torch.from_numpy(batch.input_ids)
        if (batch.input_ids == FROM_DEVICE).any():
            input_ids = torch.where(input_ids == FROM_DEVICE, self._last_token[slots], input_ids)
        row_slots = slots[torch.tensor(batch.q_indptr[:-1])]
        inputs = ForwardInputs(
            input_ids=input_ids,
            positions=torch.from_numpy(batch.positions),
            write_pages=torch.from_numpy(batch.write_pages),
            logit_rows=torch.from_numpy(batch.logit_rows),
            q_indptr=list(batch.q_indptr),
            kv_lens=list(batch.kv_lens),
            page_rows=self._page_table[row_slots, : max(batch.kv_lens)],
            segments=batch.segments,
        )
        return self._model.forward(inputs)

    def _sample(self, logits: Tensor, jobs: list[_SampleJob]) -> list[RowResult]:
        drawn = [job for job in jobs if job.draw is not None]
        tokens: dict[int, int] = {}
        if drawn:
            at = torch.tensor([job.logits_at + len(job.targets) for job in drawn])
            # Indexing copies: spared where every row of logits is drawn from.
            ours = logits if len(drawn) == len(logits) else logits[at]
            ids = sample(ours, [job.draw for job in drawn if job.draw is not None]).ids
            self._last_token[torch.tensor([job.slot for job in drawn])] = ids
            tokens = {job.slot: token for job, token in zip(drawn, ids.tolist(), strict=True)}
        scores = iter(_score(logits, jobs, tokens))
        results = []
        for job in jobs:
            prompt = tuple(next(scores) for _ in job.targets)
            token = tokens.get(job.slot)
            results.append(RowResult(prompt, token, next(scores) if job.wants_logprob else None))
        return results


def _sample_job(row: Row, logits_at: int) -> _SampleJob:
    request = row.request
    params = request.params
    targets = request.prompt[row.logits_from + 1 : row.logits_to + 1]
    return _SampleJob(
        logits_at=logits_at,
        targets=tuple(targets),
        top=params.top_logprobs,
        slot=row.slot,
        draw=_sample_row(request, row.end) if row.samples else None,
        wants_logprob=row.samples and params.wants_logprobs,
    )


def _sample_row(request: Request, position: int) -> SampleRow:
    params = request.params
    return SampleRow(
        params=params,
        seed=request.seed,
        position=position,
        output_len=request.output_len,
        stop_ids=tuple(request.stop_ids) if request.output_len < params.min_tokens else (),
        prompt_ids=request.known[: len(request.prompt)],
        output_ids=np.array(request.output, dtype=np.int64) if params.has_penalties else None,
    )


def _score(logits: Tensor, jobs: list[_SampleJob], tokens: dict[int, int]) -> list[TokenLogprob]:
    """The logprobs of the prompt targets and drawn tokens that are asked for, job by job."""
    rows: list[int] = []
    targets: list[int] = []
    top: list[int] = []
    for job in jobs:
        wanted = list(job.targets)
        if job.wants_logprob:
            wanted.append(tokens[job.slot])
        rows += range(job.logits_at, job.logits_at + len(wanted))
        targets += wanted
        top += [job.top] * len(wanted)
    return token_logprobs(logits[torch.tensor(rows)], targets, top) if rows else []
