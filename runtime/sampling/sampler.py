"""Choosing the next token of each row."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from branchline.runtime.sampling.adjust import adjust
from branchline.runtime.sampling.filters import Filters, draw_filtered
from branchline.runtime.sampling.philox import uniform
from branchline.runtime.sampling.rows import Sampled, SampleRow

if TYPE_CHECKING:
    from collections.abc import Sequence


def sample(logits: Tensor, rows: Sequence[SampleRow]) -> Sampled:
    """The next token of each row.

    A NaN counts as impossible. A row with no possible token gets id 0, a row with infinite logits
    the first of those.

    Args:
        logits: float32 [R, V] on the CPU; not changed.
        rows: R of them.
    """
    assert len(rows) == len(logits), "one row for each row of logits"
    assert logits.dtype == torch.float32, "the model's logits are float32"
    scores = adjust(logits, rows)
    ids, highest = _argmax(scores)
    if bool(highest.isnan().any()):
        scores = scores.masked_fill(scores.isnan(), -torch.inf)
        ids, highest = _argmax(scores)
    finite = highest.isfinite().tolist()
    drawn = [i for i, row in enumerate(rows) if finite[i] and not row.params.greedy]
    if drawn:
        ids[drawn] = _draw(scores, highest, rows, drawn)
    return Sampled(ids)


def _argmax(scores: Tensor) -> tuple[Tensor, Tensor]:
    """The first highest of each row, and its value; a NaN counts as the highest.

    By numpy: torch's takes ten times as long on the CPU.
    """
    ids = torch.from_numpy(scores.numpy().argmax(-1))
    return ids, scores.gather(-1, ids[:, None])[:, 0]


def _draw(scores: Tensor, highest: Tensor, rows: Sequence[SampleRow], drawn: list[int]) -> Tensor:
    """The tokens of the rows numbered `drawn`."""
    if len(drawn) < len(rows):
        scores, highest = scores[drawn], highest[drawn]
    chosen = [rows[i] for i in drawn]
    filters = Filters.of([row.params for row in chosen], scores.shape[-1])
    uniforms = uniform([row.seed for row in chosen], [row.position for row in chosen])
    return draw_filtered(scores, highest, filters, torch.from_numpy(uniforms))
