"""Forwards on the device: captured at a few sizes, and as they come beyond those."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from branchline.runtime.cuda.graphs import bucket_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from branchline.runtime.batch import Batch
    from branchline.runtime.cuda.graphs import Graph, Graphs
    from branchline.runtime.cuda.plans import DevicePlan, Planner
    from branchline.runtime.cuda.tables import Tables
    from branchline.runtime.models.inputs import PlannedModel


@dataclass(frozen=True, slots=True)
class Lane:
    """How steps of up to `capacity` tokens run, padded or not."""

    capacity: int
    plan: DevicePlan
    forward: Graph | None = None  # None: as it comes, not captured
    advance: Graph | None = None  # makes the tables and the plan those of the next step

    @property
    def captured(self) -> bool:
        """Whether it can also go on without the host."""
        return self.advance is not None


class Forwards:
    """Runs the step that the tables hold.

    A captured forward serves any batch of its size with no more rows of logits than it has room
    for. Any other one, like a batch with logprobs of a long prompt, runs as it comes.
    """

    def __init__(
        self,
        model: PlannedModel,
        tables: Tables,
        planner: Planner,
        *,
        draws: int,
    ) -> None:
        """For steps of up to `draws` draws."""
        self._model = model
        self._tables = tables
        self._planner = planner
        self._draws = draws
        # float32 [draws, vocab]: a captured forward's logits; first what is drawn from
        self.drawn = torch.zeros((draws, model.vocab_size), device=tables.last_token.device)
        self._lanes: dict[int, Lane] = {}

    def capture(self, graphs: Graphs, buckets: Sequence[int]) -> None:
        """Capture the sizes of `buckets`, the largest first: its memory then serves the others."""
        for tokens in sorted(buckets, reverse=True):
            plan = self._planner.empty(tokens)
            forward = graphs.capture(self._captured(tokens, plan))
            advance = graphs.capture(self._advance(tokens, plan))
            self._lanes[tokens] = Lane(tokens, plan, forward, advance)
        self._lanes = dict(sorted(self._lanes.items()))

    def lane(self, batch: Batch) -> tuple[Lane, int]:
        """Where a batch runs, and with how many tokens, padding included.

        A forward as it comes is padded too, as far as the table of draws is read.
        """
        count = len(batch.input_ids)
        bucket = bucket_of(count, tuple(self._lanes))
        if bucket is not None and len(batch.logit_rows) <= self._draws:
            return self._lanes[bucket], bucket
        tokens = bucket or count
        # With room for this step only: less to send, fewer programs that find nothing to do.
        return Lane(tokens, self._planner.empty(tokens)), tokens

    def run(self, lane: Lane, tokens: int, batch: Batch) -> Tensor:
        """Launch it; the batch's logits, float32 [M, vocab], until the next forward.

        They are in the order of the step's table, see `drawn_first`.
        """
        logit_rows = len(batch.logit_rows)
        if lane.forward is not None:
            lane.forward.replay()
            return self.drawn[:logit_rows]
        logits = self._model.compute(self._tables.tokens(tokens, logit_rows), lane.plan)
        draws = sum(row.samples for row in batch.rows)
        self.drawn[:draws].copy_(logits[:draws])
        return logits

    def _captured(self, tokens: int, plan: DevicePlan) -> Callable[[], None]:
        rows = min(tokens, self._draws)

        def forward() -> None:
            step = self._tables.tokens(tokens, rows)
            self.drawn[:rows].copy_(self._model.compute(step, plan))

        return forward

    def _advance(self, tokens: int, plan: DevicePlan) -> Callable[[], None]:
        def advance() -> None:
            self._tables.advance(tokens)
            plan.grow()

        return advance
