"""The runner of the CUDA device: the same steps as the CPU's, launched without a wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from branchline.runtime.cuda.results import Ready, Results, Scores, known_targets
from branchline.runtime.cuda.staging import Staging
from branchline.runtime.cuda.steady import Steady
from branchline.runtime.cuda.tables import drawn_first, patch_words, step_words
from branchline.runtime.jobs import sample_jobs, sample_row
from branchline.runtime.runner import Forward, Sampled
from branchline.runtime.sampling.device_logprobs import device_logprobs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from branchline.runtime.batch import Batch, Row
    from branchline.runtime.cuda.draws import Draws
    from branchline.runtime.cuda.forward import Forwards, Lane
    from branchline.runtime.cuda.plans import Planner
    from branchline.runtime.cuda.queue import Event, Queue
    from branchline.runtime.cuda.tables import Tables


class CudaRunner:
    """A `Runner` whose state is the device's; see `branchline.runtime.cuda`."""

    def __init__(
        self, queue: Queue, tables: Tables, planner: Planner, forwards: Forwards, draws: Draws
    ) -> None:
        self.staging = Staging(queue)
        self._queue = queue
        self._tables = tables
        self._planner = planner
        self._forwards = forwards
        self._draws = draws
        self._steady = Steady()
        self._fetched: Event | None = None  # the last draws' ids have left their place

    def forward(self, batch: Batch) -> Forward:
        """See `Runner.forward`."""
        with self._queue.launching():
            lane, tokens = self._forwards.lane(batch)
            if self._steady.continues(batch):
                self._advance(batch, lane)
            else:
                self._load(batch, lane, tokens)
            return Forward(batch, Ready(self._forwards.run(lane, tokens, batch)))

    def sample(self, forward: Forward) -> Sampled:
        """See `Runner.sample`."""
        rows, jobs = sample_jobs(forward.batch)
        # So are those that have ended or whose next token is forced, their results dropped: the
        # step's table stays as it is.
        drawn = [row for row in forward.batch.rows if row.samples]
        number = {row.slot: index for index, row in enumerate(drawn)}
        scores = Scores.of(jobs, number)
        with self._queue.launching():
            # A mask changes the logits in place.
            logits = forward.logits.result()
            if scores is not None and any(row.request.constraint is not None for row in rows):
                logits = logits.clone()
            self._set_sampler(rows, number)
            if self._fetched is not None:
                self._queue.after(self._fetched)
            ids = self._draws.run([row.slot for row in drawn])
            sources = [ids]
            if scores is not None:
                sources += self._score(scores, forward.batch, logits, ids)
            arriving, self._fetched = self._queue.fetch(sources)
        return Sampled(rows, Results(jobs, number, arriving, self._fetched, sources))

    def close(self) -> None:
        """See `Runner.close`."""
        self._queue.close()

    def _advance(self, batch: Batch, lane: Lane) -> None:
        """The same rows go on; all that can be new are pages reserved for them."""
        assert lane.advance is not None
        if batch.patches:
            self._tables.patch(*self.staging.send(self._patches(batch)))
        lane.advance.replay()

    def _load(self, batch: Batch, lane: Lane, tokens: int) -> None:
        """Send a step that does not follow from the one before."""
        step = step_words(batch, tokens, self._tables.padding_slot)
        plan, steps = self._planner.pack(batch, lane.capacity)
        parts = self.staging.send([step, plan, *self._patches(batch)])
        self._tables.load(parts[0], tokens)
        lane.plan.load(parts[1])
        if batch.patches:
            self._tables.patch(*parts[2:])
        self._steady.loaded(batch, steps if lane.captured else 0)

    def _patches(self, batch: Batch) -> Sequence[np.ndarray]:
        return patch_words(batch.patches, self._tables.page_table.shape[1])

    def _set_sampler(self, rows: Sequence[Row], number: dict[int, int]) -> None:
        """Tell the sampler of the requests that draw for the first time since they extended.

        That includes those that extend again, after forced tokens: what was drawn in their place
        is not counted. What grammars allow travels with it.
        """
        new = [row for row in rows if row.draws and row.end == row.request.extend_len]
        masks, masked = _masks([row for row in rows if row.draws], number)
        if not (new or len(masked)):
            return
        sampler = self._draws.sampler
        patch = sampler.pack([row.slot for row in new], [sample_row(row) for row in new])
        words, masks_there, masked_there = self.staging.send([patch.words, masks, masked])
        if new:
            sampler.apply(patch, words)
        if len(masked):
            self._draws.mask(masks_there.view(len(masked), -1), masked_there)

    def _score(self, scores: Scores, batch: Batch, logits: Tensor, ids: Tensor) -> list[Tensor]:
        """The targets, their logprobs, and the alternatives' logprobs and ids."""
        place = np.argsort(drawn_first(batch)).astype(np.int32)
        rows, targets = self.staging.send([place[scores.rows], scores.targets])
        known = known_targets(targets.long(), ids)
        found = device_logprobs(logits[rows.long()], known, scores.top)
        return [known, found.chosen, found.top, found.top_ids]


def _masks(rows: Sequence[Row], number: dict[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """The masks of rows that have a grammar, one after the other, and the numbers of their draws.

    Both int32.
    """
    masks = {
        number[row.slot]: row.request.constraint.mask
        for row in rows
        if row.request.constraint is not None
    }
    empty = np.empty(0, dtype=np.int32)
    return np.concatenate([empty, *masks.values()]), np.array(list(masks), dtype=np.int32)
