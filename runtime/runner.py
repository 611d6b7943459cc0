"""Runs batches: what the loop asks of a device, and how the CPU does it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

import torch

from branchline.runtime.batch import FROM_DEVICE
from branchline.runtime.jobs import RowResult, sample_jobs, sample_row
from branchline.runtime.models.inputs import ForwardInputs
from branchline.runtime.sampling import sample, token_logprobs

if TYPE_CHECKING:
    from torch import Tensor

    from branchline.protocol import TokenLogprob
    from branchline.runtime.batch import Batch, Row
    from branchline.runtime.jobs import SampleJob
    from branchline.runtime.models.inputs import Model
    from branchline.runtime.sampling import SampleRow
    from branchline.runtime.sizing import Limits
    from branchline.runtime.streams import Stream

T_co = TypeVar("T_co", covariant=True)


class Pending(Protocol[T_co]):
    """What a device will have computed."""

    def result(self) -> T_co:
        """Wait for it. Raises what went wrong; a second call gives the same."""


@dataclass(frozen=True, slots=True)
class Forward:
    """A launched forward."""

    batch: Batch
    logits: Pending[Tensor]  # float32 [M, vocab]; on a device only until the next forward


@dataclass(frozen=True, slots=True)
class Sampled:
    """A launched sampling; rows of requests that had ended at its launch are not in it."""

    rows: tuple[Row, ...]
    results: Pending[list[RowResult]]  # one for each row


class Runner(Protocol):
    """Launches the steps of one model on one device; calls return before the work is done.

    Launches run in the order of the calls. The page table and the last tokens are the device's:
    only launched work writes them.
    """

    def forward(self, batch: Batch) -> Forward:
        """Launch the forward of a batch."""

    def sample(self, forward: Forward) -> Sampled:
        """Launch the draw of the next tokens, with the penalties and masks of what is known now.

        Called once for each forward, before the next one.
        """

    def close(self) -> None:
        """Wait for the device."""


class CpuRunner:
    """A `Runner` whose launches are jobs of a worker thread; only those touch torch."""

    def __init__(self, model: Model, stream: Stream, slots: int, limits: Limits) -> None:
        self._model = model
        self._stream = stream

        # On the stream, because torch fills a large tensor with several threads.
        def allocate() -> tuple[Tensor, Tensor]:
            model.allocate(limits.pages)
            page_table = torch.zeros((slots, limits.max_context), dtype=torch.int64)
            return page_table, torch.zeros(slots, dtype=torch.int64)

        self._page_table, self._last_token = stream.submit(allocate).result()

    def forward(self, batch: Batch) -> Forward:
        """See `Runner.forward`."""
        return Forward(batch, self._stream.submit(lambda: self._forward(batch)))

    def sample(self, forward: Forward) -> Sampled:
        """See `Runner.sample`."""
        rows, jobs = sample_jobs(forward.batch)
        draws = [sample_row(row) for row in rows if row.draws]
        results = self._stream.submit(lambda: self._sample(forward.logits.result(), jobs, draws))
        return Sampled(rows, results)

    def close(self) -> None:
        """See `Runner.close`."""
        self._stream.close()

    def _forward(self, batch: Batch) -> Tensor:
        for patch in batch.patches:
            row = self._page_table[patch.slot]
            row[patch.start : patch.start + len(patch.pages)] = torch.from_numpy(patch.pages)
        input_ids = torch.from_numpy(batch.input_ids)
        if (batch.input_ids == FROM_DEVICE).any():
            last = self._last_token[torch.from_numpy(batch.token_slots)]
            input_ids = torch.where(input_ids == FROM_DEVICE, last, input_ids)
        inputs = ForwardInputs(
            input_ids=input_ids,
            positions=torch.from_numpy(batch.positions),
            write_pages=torch.from_numpy(batch.write_pages),
            logit_rows=torch.from_numpy(batch.logit_rows),
            q_indptr=list(batch.q_indptr),
            kv_lens=list(batch.kv_lens),
            page_table=self._page_table,
            slots=[row.slot for row in batch.rows],
            segments=batch.segments,
        )
        return self._model.forward(inputs)

    def _sample(
        self, logits: Tensor, jobs: list[SampleJob], draws: list[SampleRow]
    ) -> list[RowResult]:
        drawn = [job for job in jobs if job.draws]
        tokens: dict[int, int] = {}
        if drawn:
            at = torch.tensor([job.logits_at + len(job.targets) for job in drawn])
            # Indexing copies: spared where every row of logits is drawn from.
            ours = logits if len(drawn) == len(logits) else logits[at]
            ids = sample(ours, draws).ids
            self._last_token[torch.tensor([job.slot for job in drawn])] = ids
            tokens = {job.slot: token for job, token in zip(drawn, ids.tolist(), strict=True)}
        scores = iter(_score(logits, jobs, tokens))
        results = []
        for job in jobs:
            prompt = tuple(next(scores) for _ in job.targets)
            token = tokens.get(job.slot)
            results.append(RowResult(prompt, token, next(scores) if job.wants_logprob else None))
        return results


def _score(logits: Tensor, jobs: list[SampleJob], tokens: dict[int, int]) -> list[TokenLogprob]:
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
