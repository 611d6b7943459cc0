"""Log-probabilities under the model's own distribution: unmodified logits, temperature 1."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from branchline.protocol import TokenLogprob
from branchline.runtime.sampling.draw import total, weights_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_CHUNK = 64  # rows in one pass: the temporary is as large as their logits
_SLACK = 16  # ranked beyond what was asked, so that a tie at the end seldom needs a full sort

Top = tuple[tuple[float, int], ...]  # (logprob, token), most likely first, ties by the lowest id


def token_logprobs(
    logits: Tensor, targets: Sequence[int], top: Sequence[int]
) -> list[TokenLogprob]:
    """The logprob of one token in each row, beside the row's most likely ones.

    A NaN counts as impossible; what is impossible has −inf.

    Args:
        logits: float32 [M, V]; row i is the distribution that `targets[i]` is looked up in.
        targets: M token ids.
        top: how many alternatives to report, for each row.
    """
    assert len(targets) == len(top) == len(logits), "one target and one count for each row"
    found: list[TokenLogprob] = []
    for rows, part in _chunks(logits):
        ids = torch.tensor(targets[rows])
        shift = _shift(part)
        chosen = _shifted(part.gather(-1, ids[:, None]), shift)[:, 0].tolist()
        best = _best(part, shift, top[rows])
        found += map(TokenLogprob, chosen, targets[rows], best)
    return found


def _chunks(logits: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """The rows in chunks, without NaN."""
    for start in range(0, len(logits), _CHUNK):
        rows = slice(start, start + _CHUNK)
        part = logits[rows]
        if bool(part.amax(-1).isnan().any()):
            part = part.masked_fill(part.isnan(), -torch.inf)
        yield rows, part


def _shift(logits: Tensor) -> Tensor:
    """What is taken from the logits to make them logprobs, float64 [M, 1]."""
    highest = logits.amax(-1)
    weight = total(weights_of(logits, highest, torch.ones(len(logits), dtype=torch.float64)))
    return (highest + weight.log())[:, None]


def _shifted(logits: Tensor, shift: Tensor) -> Tensor:
    """Some logits of each row (float32 [M, C]) as logprobs."""
    logprobs = logits.to(torch.float64) - shift
    return logprobs.masked_fill(logprobs.isnan(), -torch.inf).to(torch.float32)


def _best(logits: Tensor, shift: Tensor, counts: Sequence[int]) -> list[Top]:
    best: list[Top] = [()] * len(counts)
    asking = [i for i, count in enumerate(counts) if count]
    if not asking:
        return best
    wanted = torch.tensor([counts[i] for i in asking]).clamp_max(logits.shape[-1])
    some = logits if len(asking) == len(logits) else logits[asking]
    ids = _rank(some, wanted)
    logprobs = _shifted(some.gather(-1, ids), shift[asking]).tolist()
    for i, values, tokens, count in zip(
        asking, logprobs, ids.tolist(), wanted.tolist(), strict=True
    ):
        best[i] = tuple(zip(values[:count], tokens[:count], strict=True))
    return best


def _rank(logits: Tensor, wanted: Tensor) -> Tensor:
    """The ids of the highest logits, ties by the lowest id: int64 [M, C].

    Only the first `wanted[i]` (int64 [M]) of row i are meant; C is at least their maximum.
    """
    width = min(int(wanted.max()) + _SLACK, logits.shape[-1])
    # Ids in order first: a stable sort by logit then leaves ties in the order of their ids.
    ids = logits.topk(width, dim=-1, sorted=False).indices.sort(dim=-1).values
    ordered, order = torch.sort(logits.gather(-1, ids), dim=-1, descending=True, stable=True)
    ids = ids.gather(-1, order)
    # Which of the logits that tie with the last are among these is chance.
    certain = (ordered > ordered[:, -1:]).sum(-1)
    rows = (wanted > certain).nonzero()[:, 0]
    if width < logits.shape[-1] and len(rows):
        ranked = torch.sort(logits[rows], dim=-1, descending=True, stable=True)
        ids[rows] = ranked.indices[:, :width]
    return ids
