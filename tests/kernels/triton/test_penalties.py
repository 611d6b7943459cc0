"""Bias, penalties and the mask of stop ids against the CPU's."""

from dataclasses import replace

import numpy as np
import torch

from branchline.kernels.triton.penalties import COUNT, IN_PROMPT, IS_STOP, adjust
from branchline.runtime.sampling import SampleRow
from branchline.runtime.sampling.adjust import adjust as adjust_on_cpu
from branchline.runtime.sampling.slot_rows import ROW, pack_rows
from branchline.sampling_params import SamplingParams

from .compare import random

POSITION = 30


def row_of(params, output=(), prompt=(), stops=()):
    return SampleRow(
        params,
        1,
        POSITION,
        len(output),
        stops,
        np.array(prompt, dtype=np.int32),
        np.array(output, dtype=np.int64),
    )


def adjusted(logits, rows, slots=None, positions=None):
    """The kernel's scores; the tables as they must be, from the rows and not from `pack_rows`."""
    count, vocab = logits.shape
    words = pack_rows(range(count), rows, vocab).words
    table = torch.from_numpy(words[count : count * (1 + ROW)]).view(count, ROW)
    marks = torch.zeros(count, vocab, dtype=torch.int32)
    bias = torch.full((count, vocab), torch.nan)  # read only where a row has one
    for slot, row in enumerate(rows):
        if row.params.logit_bias:
            bias[slot] = 0.0
        for token, value in row.params.logit_bias.items():
            bias[slot, token] = value
        for token in row.output_ids:
            marks[slot, token] += 1
        marks[slot, row.prompt_ids] |= IN_PROMPT.value
        marks[slot, list(row.stop_ids)] |= IS_STOP.value
    scores = torch.empty_like(logits)
    slots = torch.arange(count) if slots is None else torch.tensor(slots)
    positions = torch.full((len(slots),), POSITION) if positions is None else positions
    adjust(logits, scores, slots, positions, table, marks, bias)
    return scores


ROWS = [
    row_of(SamplingParams()),
    row_of(SamplingParams(logit_bias={0: 1.5, 4098: -100.0, 7: 3.0})),
    row_of(SamplingParams(repetition_penalty=1.3), [5, 5, 6], [6, 7, 4098]),
    row_of(SamplingParams(repetition_penalty=0.5), [], [1, 2, 3]),
    row_of(SamplingParams(frequency_penalty=0.7), [5, 5, 6, 4097]),
    row_of(SamplingParams(presence_penalty=-1.1), [5, 5, 6]),
    row_of(SamplingParams(min_tokens=4), [1, 2, 3], stops=(9, 4098)),
    row_of(SamplingParams(min_tokens=3), [1, 2, 3], stops=(9, 4098)),
    row_of(
        SamplingParams(
            min_tokens=9,
            logit_bias={5: 2.0, 9: 50.0},
            repetition_penalty=1.7,
            frequency_penalty=0.3,
            presence_penalty=0.2,
        ),
        [5, 9, 9, 12],
        [5, 9, 13],
        stops=(9, 14),
    ),
]


def test_scores_are_the_cpus():
    logits = random(len(ROWS), 4099) * 3
    found = adjusted(logits, ROWS)
    wanted = adjust_on_cpu(logits, ROWS)
    assert torch.equal(found.isinf(), wanted.isinf())
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6)
    assert torch.equal(found[0], logits[0])


def test_logits_are_left_alone_and_impossible_ones_stay_so():
    logits = random(1, 50)
    logits[0, [5, 6]] = -torch.inf
    logits[0, 7] = torch.nan
    before = logits.clone()
    row = row_of(SamplingParams(repetition_penalty=2.0, logit_bias={5: 9.0}), [5, 7], [6])
    found = adjusted(logits, [row])[0]
    assert torch.equal(logits.nan_to_num(1e9), before.nan_to_num(1e9))
    assert (found[[5, 6]] == -torch.inf).all()
    assert found[7].isnan()


def test_stop_ids_are_free_from_the_first_position_with_enough_tokens():
    row = row_of(SamplingParams(min_tokens=4), [1], stops=(9,))
    last_masked = POSITION + 2  # that token would be the fourth of the output: three are too few
    for position, masked in ((POSITION, True), (last_masked, True), (last_masked + 1, False)):
        found = adjusted(random(1, 50), [row], positions=torch.tensor([position]))
        assert bool(found[0, 9] == -torch.inf) is masked


def test_padding_is_copied():
    rows = [replace(ROWS[-1], stop_ids=(9,)), ROWS[-1]]
    logits = random(3, 64)
    found = adjusted(logits[:2], rows, slots=[-1, 1])
    assert torch.equal(found[0], logits[0])
    assert not torch.equal(found[1], logits[1])


def test_a_count_has_room_for_every_position_of_a_context():
    assert COUNT.value & (IN_PROMPT.value | IS_STOP.value) == 0
    assert COUNT.value > 2**24
