"""Rows of the device's sampling tables, written on the host as one buffer of 32-bit words.

::

    slots [n] │ their parameters [n, WORDS] │ slots whose marks are cleared │ … whose bias is
    cells: the prompt's marks │ marks to add │ biases, each kind as slots, token ids, words

A cell is one word of a table with a column for each token.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from branchline.kernels.triton import penalties
from branchline.kernels.triton import sampler_table as table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from branchline.runtime.sampling.rows import SampleRow

    Words: TypeAlias = NDArray[np.int32]
    Cells: TypeAlias = tuple[int, NDArray[np.integer], Words | int]  # a slot, ids, their words

ROW: int = table.WORDS.value  # words of a slot's parameters


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many entries each part of the buffer has."""

    rows: int
    marked: int  # slots whose marks are cleared
    biased: int  # slots whose bias is cleared
    prompt: int  # cells
    added: int  # cells
    bias: int  # cells

    @property
    def words(self) -> int:
        """The length of the buffer."""
        cells = self.prompt + self.added + self.bias
        return self.rows * (1 + ROW) + self.marked + self.biased + 3 * cells


@dataclass(frozen=True, slots=True)
class SlotRows:
    """What changes in the tables."""

    words: Words  # [sizes.words]
    sizes: Sizes


def pack_rows(slots: Sequence[int], rows: Sequence[SampleRow], vocab: int) -> SlotRows:
    """The rows of different slots, each as before the draw that its `SampleRow` describes."""
    assert len(slots) == len(set(slots)), "two rows for one slot"
    pairs = list(zip(slots, rows, strict=True))
    marked = [slot for slot, row in pairs if row.params.has_penalties or row.masks_stops]
    biased = [slot for slot, row in pairs if row.params.logit_bias]
    prompt = _columns([(slot, _prompt_ids(row), penalties.IN_PROMPT.value) for slot, row in pairs])
    added = _columns(
        [(slot, _output_ids(row), 1) for slot, row in pairs]
        + [(slot, _stop_ids(row, vocab), penalties.IS_STOP.value) for slot, row in pairs]
    )
    bias = _columns([_bias(slot, row, vocab) for slot, row in pairs])
    parameters = np.zeros((len(rows), ROW), dtype=np.int32)
    for words, row in zip(parameters, rows, strict=True):
        _write_parameters(words, row, vocab)
    lists = [np.array(ids, dtype=np.int32) for ids in (slots, marked, biased)]
    sizes = Sizes(
        len(rows), len(marked), len(biased), prompt.shape[1], added.shape[1], bias.shape[1]
    )
    parts = [lists[0], parameters, lists[1], lists[2], prompt, added, bias]
    return SlotRows(np.concatenate([part.ravel() for part in parts]), sizes)


def _columns(cells: list[Cells]) -> Words:
    """Slots, token ids and words of all the cells: int32 [3, cells]."""
    columns = np.empty((3, sum(len(ids) for _, ids, _ in cells)), dtype=np.int32)
    start = 0
    for slot, ids, words in cells:
        end = start + len(ids)
        columns[0, start:end] = slot
        columns[1, start:end] = ids
        columns[2, start:end] = words
        start = end
    return columns


def _write_parameters(words: Words, row: SampleRow, vocab: int) -> None:
    """Fill one row of the table, which is zero."""
    params = row.params
    floats = words.view(np.float32)
    words[table.FLAGS.value] = (
        table.GREEDY.value * params.greedy
        + table.BIASED.value * bool(params.logit_bias)
        + table.PENALIZED.value * params.has_penalties
    )
    words[table.TOP_K.value] = params.top_k if 0 < params.top_k < vocab else 0
    if not params.greedy:
        slope = math.log2(math.e) / params.temperature
        floats[table.SLOPE.value] = min(slope, table.STEEPEST)
    floats[table.MIN_P.value] = params.min_p
    seed, top_p = table.SEED.value, table.TOP_P.value
    words[seed : seed + 2] = np.array([row.seed], dtype=np.uint64).view(np.int32)
    words[top_p : top_p + 2] = np.array([params.top_p], dtype=np.float64).view(np.int32)
    floats[table.REPETITION.value] = params.repetition_penalty
    floats[table.FREQUENCY.value] = params.frequency_penalty
    floats[table.PRESENCE.value] = params.presence_penalty
    if row.masks_stops:
        words[table.STOPS_FROM.value] = row.position - row.output_len + params.min_tokens


def _prompt_ids(row: SampleRow) -> NDArray[np.integer]:
    if row.params.repetition_penalty == 1.0:
        return _NONE
    assert row.prompt_ids is not None, "a row with a repetition penalty comes with its prompt"
    return row.prompt_ids


def _output_ids(row: SampleRow) -> NDArray[np.integer]:
    if not row.params.has_penalties:
        return _NONE
    assert row.output_ids is not None, "a row with penalties comes with its output"
    assert len(row.output_ids) == row.output_len, "penalties need all of the output"
    return row.output_ids


def _stop_ids(row: SampleRow, vocab: int) -> Words:
    """Different ones. A tokenizer may name ids that the model has no logit for."""
    if not row.masks_stops:
        return _NONE
    return np.array(sorted({token for token in row.stop_ids if 0 <= token < vocab}), dtype=np.int32)


def _bias(slot: int, row: SampleRow, vocab: int) -> Cells:
    bias = row.params.logit_bias
    assert all(0 <= token < vocab for token in bias), "the service checks logit_bias"
    values = np.fromiter(bias.values(), np.float32, len(bias))
    return slot, np.fromiter(bias.keys(), np.int32, len(bias)), values.view(np.int32)


_NONE = np.zeros(0, dtype=np.int32)
