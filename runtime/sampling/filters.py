"""Temperature, top-k, top-p and min-p over a batch of rows, and the draw from what they leave.

In the order of likelihood (ties by the lowest id) each filter keeps a prefix, so together they keep
the shortest of the three. Where it ends shows in the highest logits, put in order without their
ids: what is above the last kept logit survives, and of its ties the lowest ids.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from branchline.runtime.sampling.draw import draw, padded, total, weights_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from branchline.sampling_params import SamplingParams

# How many logits are put in order before all of them are: five times as fast for 49,152, and a
# language model's rows rarely need more.
_NARROW = 256
_GROUP = 32  # logits that are first looked at together


@dataclass(frozen=True, slots=True)
class Filters:
    """The parameters of R rows."""

    temperature: Tensor  # float64 [R], above 0
    top_k: Tensor  # int64 [R]; the size of the vocabulary keeps all
    top_p: Tensor  # float64 [R]; 1 keeps all
    min_p: Tensor  # float32 [R]; 0 keeps all

    @classmethod
    def of(cls, params: Sequence[SamplingParams], vocab: int) -> Filters:
        """The filters that some rows' parameters ask for."""
        return cls(
            torch.tensor([p.temperature for p in params], dtype=torch.float64),
            torch.tensor([vocab if p.top_k == -1 else min(p.top_k, vocab) for p in params]),
            torch.tensor([p.top_p for p in params], dtype=torch.float64),
            torch.tensor([p.min_p for p in params], dtype=torch.float32),
        )

    def at(self, rows: Tensor) -> Filters:
        """The same for some of the rows."""
        return Filters(self.temperature[rows], self.top_k[rows], self.top_p[rows], self.min_p[rows])


@dataclass(frozen=True, slots=True)
class Ends:
    """Where the survivors of R rows end in the order of likelihood."""

    count: Tensor  # int64 [R], at least 1
    logit: Tensor  # float32 [R], of the last survivor
    splits_tie: Tensor  # bool [R]: another token with this logit does not survive


def draw_filtered(logits: Tensor, highest: Tensor, filters: Filters, uniforms: Tensor) -> Tensor:
    """One token of each row.

    Args:
        logits: float32 [R, V], no NaN.
        highest: float32 [R], the finite maximum of each row.
        filters: of the R rows.
        uniforms: float64 [R] in [0, 1).

    Returns:
        int64 [R].
    """
    weights = weights_of(logits, highest, filters.temperature)
    rows = ((filters.top_k < logits.shape[-1]) | (filters.top_p < 1.0)).nonzero()[:, 0]
    if len(rows) == len(logits):
        _cut(weights, logits, highest, filters)
    elif len(rows):
        part = weights[rows]
        _cut(part, logits[rows], highest[rows], filters.at(rows))
        weights[rows] = part
    if bool((filters.min_p > 0.0).any()):  # compares with the likeliest, which weighs 1
        weights.masked_fill_(weights < filters.min_p[:, None], 0.0)
    return draw(weights, uniforms)


def _cut(weights: Tensor, logits: Tensor, highest: Tensor, filters: Filters) -> None:
    """Set the weight of what top-k and top-p remove to 0."""
    ends = _find_ends(logits, highest, filters, total(weights))
    weights.masked_fill_(logits < ends.logit[:, None], 0.0)
    for row in ends.splits_tie.nonzero()[:, 0].tolist():
        above = int((logits[row] > ends.logit[row]).sum())
        tied = (logits[row] == ends.logit[row]).nonzero()[:, 0]
        weights[row, tied[int(ends.count[row]) - above :]] = 0.0


def _find_ends(logits: Tensor, highest: Tensor, filters: Filters, totals: Tensor) -> Ends:
    """Look among a few logits of each row, and among all of the rows that end further down.

    Args:
        logits: float32 [R, V].
        highest: float32 [R].
        filters: of the R rows.
        totals: float64 [R], the weight of all tokens.
    """
    vocab = logits.shape[-1]
    # One more than top-k shows whether it splits a tie.
    width = min(_NARROW, int(filters.top_k.max()) + 1, vocab)
    ends = _ends_within(width, logits, highest, filters, totals)
    found = (ends.count < width) & ((filters.top_k < width) | (filters.top_k == vocab))
    rows = (~found).nonzero()[:, 0]
    if width < vocab and len(rows):
        rest = _ends_within(vocab, logits[rows], highest[rows], filters.at(rows), totals[rows])
        ends.count[rows] = rest.count
        ends.logit[rows] = rest.logit
        ends.splits_tie[rows] = rest.splits_tie
    return ends


def _ends_within(
    width: int, logits: Tensor, highest: Tensor, filters: Filters, totals: Tensor
) -> Ends:
    """The ends if they lie among the `width` highest logits; else a count that says nothing."""
    ordered = _highest(logits, width)
    weights = weights_of(ordered, highest, filters.temperature)
    count = _count_kept(weights, filters, totals)
    logit = ordered.gather(-1, count[:, None] - 1)[:, 0]
    following = ordered.gather(-1, count[:, None].clamp_max(width - 1))[:, 0]
    splits_tie = (count < width) & (following == logit) & (logit > -torch.inf)
    return Ends(count, logit, splits_tie)


def _count_kept(weights: Tensor, filters: Filters, totals: Tensor) -> Tensor:
    """How many of the likeliest tokens top-k and top-p keep, int64 [R], at most the width.

    Args:
        weights: float32 [R, width], descending.
        filters: of the R rows.
        totals: float64 [R], the weight of all tokens.
    """
    width = weights.shape[-1]
    cumulative = weights.cumsum(-1, dtype=torch.float64)
    by_top_k = filters.top_k.clamp_max(width)
    # After top-k the distribution is that of the k tokens, and top-p takes its share of those.
    of_top_k = cumulative.gather(-1, by_top_k[:, None] - 1)[:, 0]
    goal = filters.top_p * torch.where(filters.top_k <= width, of_top_k, totals)
    by_top_p = 1 + torch.searchsorted(cumulative, goal[:, None])[:, 0]  # 1: what reaches the goal
    return torch.minimum(by_top_k, torch.where(filters.top_p < 1.0, by_top_p, width))


def _highest(logits: Tensor, width: int) -> Tensor:
    """The `width` highest of each row, descending."""
    if width == logits.shape[-1]:
        # By numpy, whose sort of values alone is several times as fast as torch's with indices.
        return torch.from_numpy(np.sort(logits.numpy(), axis=-1)).flip(-1)
    groups = padded(logits, _GROUP, -torch.inf)
    groups = groups.view(len(logits), _GROUP, -1)  # [R, _GROUP, groups]: each is a column
    if width < groups.shape[-1]:
        # The `width` groups with the highest maxima hold the `width` highest logits.
        best = groups.amax(1).topk(width, dim=-1, sorted=False).indices
        groups = groups.gather(-1, best[:, None].expand(-1, _GROUP, -1))
    return groups.flatten(1).topk(width, dim=-1).values
