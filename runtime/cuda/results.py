"""The tokens and logprobs of a step, once they have come to the host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np
import torch

from branchline.protocol import TokenLogprob
from branchline.runtime.jobs import RowResult

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from branchline.runtime.cuda.queue import Event
    from branchline.runtime.jobs import SampleJob

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ready(Generic[T]):
    """A `Pending` that is there already: launched, in the order of the queue."""

    value: T

    def result(self) -> T:
        """The value."""
        return self.value


@dataclass(frozen=True, slots=True)
class Scores:
    """Which logprobs of a step are wanted: of M rows of logits, job by job."""

    rows: np.ndarray  # int32 [M]: of the batch's logits
    targets: np.ndarray  # int32 [M]: a token id, or NOT_KNOWN − the number of a draw
    top: int  # alternatives, the most that any of them asks for

    NOT_KNOWN = -1

    @classmethod
    def of(cls, jobs: Sequence[SampleJob], draws: dict[int, int]) -> Scores | None:
        """What the jobs ask for; `draws` has the number of each slot's draw. None: nothing."""
        rows: list[int] = []
        targets: list[int] = []
        for job in jobs:
            wanted = list(job.targets)
            if job.wants_logprob:
                wanted.append(cls.NOT_KNOWN - draws[job.slot])
            rows += range(job.logits_at, job.logits_at + len(wanted))
            targets += wanted
        if not rows:
            return None
        top = max(job.top for job in jobs if job.targets or job.wants_logprob)
        return cls(np.array(rows, np.int32), np.array(targets, np.int32), top)


def known_targets(targets: Tensor, ids: Tensor) -> Tensor:
    """The targets of `Scores`, int64 [M] on the device, once the draws' ids are there."""
    draws = (Scores.NOT_KNOWN - targets).clamp(min=0)
    return torch.where(targets >= 0, targets, ids[draws]) if len(ids) else targets


class Results:
    """The results of a step's jobs; the engine waits for them when it looks."""

    def __init__(
        self,
        jobs: Sequence[SampleJob],
        draws: dict[int, int],
        arriving: Sequence[Tensor],
        event: Event,
        sources: Sequence[Tensor] = (),
    ) -> None:
        """Of `jobs`, from host tensors that are valid after `event`.

        Args:
            jobs: in the order of the results.
            draws: the number of each slot's draw.
            arriving: the drawn ids, int64; with scores also their targets, logprobs, and the
                logprobs and ids of the alternatives: [M], [M], [M, N], [M, N].
            event: when all of it has arrived.
            sources: what is being copied, kept until then.
        """
        self._jobs = jobs
        self._draws = draws
        self._arriving = arriving
        self._event = event
        self._sources = sources
        self._results: list[RowResult] | None = None

    def result(self) -> list[RowResult]:
        """See `Pending.result`."""
        if self._results is None:
            self._event.synchronize()
            ids, *scores = (tensor.tolist() for tensor in self._arriving)
            self._results = self._read(ids, scores)
            self._sources = ()
        return self._results

    def _read(self, ids: list[int], scores: list[list[float]]) -> list[RowResult]:
        found = zip(*scores, strict=True)

        def next_score(job: SampleJob) -> TokenLogprob:
            target, logprob, values, tokens = next(found)
            top = zip(values[: job.top], tokens[: job.top], strict=True)
            return TokenLogprob(logprob, target, tuple(top))

        results = []
        for job in self._jobs:
            prompt = tuple(next_score(job) for _ in job.targets)
            token = ids[self._draws[job.slot]] if job.draws else None
            logprob = next_score(job) if job.wants_logprob else None
            results.append(RowResult(prompt, token, logprob))
        return results
