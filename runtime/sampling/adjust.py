"""The changes to single logits that come before the draw: bias, penalties, masks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from branchline.runtime.sampling.rows import SampleRow


def adjust(logits: Tensor, rows: Sequence[SampleRow]) -> Tensor:
    """The logits with each row's bias, penalties and masks; not a copy if no row has any."""
    touched = [i for i, row in enumerate(rows) if _touches(row)]
    if not touched:
        return logits
    scores = logits.clone()
    view = scores.numpy()
    for i in touched:
        _adjust(view[i], rows[i])
    return scores


def _touches(row: SampleRow) -> bool:
    params = row.params
    masked = row.masks_stops or row.mask is not None
    return bool(params.logit_bias) or params.has_penalties or masked


def _adjust(scores: NDArray[np.float32], row: SampleRow) -> None:
    """Change one row in place."""
    if row.params.logit_bias:
        _add_bias(scores, row.params.logit_bias)
    if row.params.has_penalties:
        assert row.output_ids is not None, "a row with penalties comes with its output"
        assert len(row.output_ids) == row.output_len, "penalties need all of the output"
        if row.params.repetition_penalty != 1.0:
            _penalize_repetition(scores, row)
        if row.params.frequency_penalty or row.params.presence_penalty:
            _penalize_output(scores, row)
    if row.masks_stops:
        # A tokenizer may name stop ids that the model has no logit for; those are never sampled.
        scores[[token for token in row.stop_ids if 0 <= token < len(scores)]] = -np.inf
    if row.mask is not None:
        _apply_mask(scores, row.mask)


def _apply_mask(scores: NDArray[np.float32], mask: NDArray[np.int32]) -> None:
    """Make impossible what the grammar does not allow; words are little-endian, as everywhere."""
    allowed = np.unpackbits(mask.view(np.uint8), count=len(scores), bitorder="little")
    np.copyto(scores, -np.inf, where=allowed == 0)


def _add_bias(scores: NDArray[np.float32], bias: dict[int, float]) -> None:
    assert all(0 <= token < len(scores) for token in bias), "the service checks logit_bias"
    tokens = np.fromiter(bias.keys(), dtype=np.int64)
    scores[tokens] += np.fromiter(bias.values(), dtype=np.float32)


def _penalize_repetition(scores: NDArray[np.float32], row: SampleRow) -> None:
    """Penalize the tokens of prompt and output once each, whatever the sign of their logit."""
    assert row.prompt_ids is not None, "a row with a repetition penalty comes with its prompt"
    assert row.output_ids is not None
    seen = np.zeros(len(scores), dtype=np.bool_)
    seen[row.prompt_ids] = True
    seen[row.output_ids] = True
    tokens = np.flatnonzero(seen)
    logits = scores[tokens]
    penalty = row.params.repetition_penalty
    scores[tokens] = np.where(logits > 0, logits / penalty, logits * penalty)


def _penalize_output(scores: NDArray[np.float32], row: SampleRow) -> None:
    assert row.output_ids is not None
    tokens, counts = np.unique(row.output_ids, return_counts=True)
    penalties = row.params.frequency_penalty * counts + row.params.presence_penalty
    scores[tokens] -= penalties.astype(np.float32)
