"""The device's sampler, under the interpreter, against the CPU's: step after step."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from branchline.runtime.cuda.guard import refuse_syncs
from branchline.runtime.sampling import SampleRow, sample, token_logprobs
from branchline.runtime.sampling.device import DeviceSampler, Mode
from branchline.runtime.sampling.device_logprobs import device_logprobs
from branchline.sampling_params import SamplingParams

VOCAB = 50
SLOTS = 6
PARAMS = [
    SamplingParams(temperature=0.0, presence_penalty=1.5),
    SamplingParams(temperature=1.4, top_k=12, frequency_penalty=0.8),
    SamplingParams(repetition_penalty=1.6, top_p=0.8, min_tokens=3),
    SamplingParams(min_tokens=2, logit_bias={4: 30.0, 5: 29.0}),
]
STOPS = (4, 5, VOCAB + 3, -1)


def logits_at(step, rows=4):
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(step)) * 2


def row_of(index, output):
    """The request `index` after `output`."""
    prompt = np.array([index, 7, 7, 9], dtype=np.int32)
    return SampleRow(
        PARAMS[index],
        1000 + index,
        len(prompt) + len(output),
        len(output),
        STOPS,
        prompt,
        np.array(output, dtype=np.int64),
    )


@pytest.fixture
def last_token():
    return torch.zeros(SLOTS, dtype=torch.int64)


@pytest.fixture
def sampler(last_token):
    return DeviceSampler(SLOTS, VOCAB, torch.device("cpu"), last_token)


def test_steps_equal_the_cpus_and_need_no_host(sampler, last_token):
    slots = [4, 0, 3, 1]
    sampler.set_rows(slots, [row_of(i, []) for i in range(4)])
    mode = sampler.mode(slots)
    assert mode == Mode(draws=True, cuts=True, adjusts=True)
    outputs = [[] for _ in PARAMS]
    for step in range(5):
        wanted = sample(logits_at(step), [row_of(i, output) for i, output in enumerate(outputs)])
        positions = torch.full((4,), 4 + step)
        found = sampler.sample(logits_at(step), torch.tensor(slots), positions, mode)
        assert torch.equal(found, wanted.ids), step
        assert torch.equal(last_token[torch.tensor(slots)], found)
        for output, token in zip(outputs, found.tolist(), strict=True):
            output.append(token)
    assert set(outputs[3][:2]).isdisjoint({4, 5})
    assert set(outputs[3][2:]) <= {4, 5}


def test_a_retracted_request_goes_on_in_another_slot(sampler):
    """Slot 2 belonged to another request, whose marks and bias must not stay."""
    sampler.set_rows([2], [row_of(3, [])])
    sampler.sample(logits_at(9, 1), torch.tensor([2]), torch.tensor([4]), sampler.mode([2]))
    output = [3, 3, 11]
    for index in (2, 1, 0):
        sampler.set_rows([2], [row_of(index, output)])
        found = sampler.sample(
            logits_at(1, 1), torch.tensor([2]), torch.tensor([7]), sampler.mode([2])
        )
        assert torch.equal(found, sample(logits_at(1, 1), [row_of(index, output)]).ids)


def test_a_slot_may_be_set_from_any_part_of_a_larger_buffer(sampler):
    patch = sampler.pack([1, 5], [row_of(2, [8, 8]), row_of(3, [])])
    buffer = torch.full((patch.sizes.words + 7,), -9, dtype=torch.int32)
    buffer[3:-4] = torch.from_numpy(patch.words)
    sampler.apply(patch, buffer[3:-4])
    found = sampler.sample(
        logits_at(2, 2), torch.tensor([1, 5]), torch.tensor([6, 4]), sampler.mode([1, 5])
    )
    assert torch.equal(found, sample(logits_at(2, 2), [row_of(2, [8, 8]), row_of(3, [])]).ids)


def test_padding_is_greedy_whatever_the_mode(sampler, last_token):
    """By −1, or by a slot that nobody set, any number of times."""
    sampler.set_rows([0], [row_of(1, [])])
    last_token[-1] = 33
    logits = logits_at(3, 4)
    slots, positions = torch.tensor([SLOTS - 1, 0, SLOTS - 1, -1]), torch.tensor([0, 4, 0, 0])
    found = sampler.sample(logits, slots, positions, sampler.mode([0]))
    assert found[1] == sample(logits[1:2], [row_of(1, [])]).ids
    assert found[[0, 2, 3]].tolist() == [*logits[[0, 2]].argmax(-1).tolist(), 0]
    assert last_token[1:-1].tolist() == [0] * (SLOTS - 2)


def test_a_greedy_mode_is_for_greedy_rows(sampler):
    rows = [replace(row_of(0, []), params=SamplingParams(temperature=0.0)) for _ in range(3)]
    sampler.set_rows([0, 1, 2], rows)
    assert sampler.mode([0, 1, 2]) == Mode()
    found = sampler.sample(logits_at(4, 3), torch.arange(3), torch.full((3,), 4), Mode())
    assert torch.equal(found, logits_at(4, 3).argmax(-1))
    everything = Mode(draws=True, cuts=True, adjusts=True)
    more = sampler.sample(logits_at(4, 3), torch.arange(3), torch.full((3,), 4), everything)
    assert torch.equal(found, more)


@pytest.mark.parametrize("step", range(5))
def test_grammar_masks_before_the_penalties_draw_what_the_cpu_draws_after_them(sampler, step):
    outputs = [[7, 7, 3]] * 4
    masks = np.array([[0b1011_0110 << step, 5], [0, 3 << step], [-(2**31), 1]], dtype=np.int32)
    rows = [row_of(i, outputs[i]) for i in range(4)]
    masked = [replace(row, mask=mask) for row, mask in zip(rows[1:], masks, strict=True)]
    sampler.set_rows(range(4), rows)
    positions = torch.tensor([row.position for row in rows])
    logits = logits_at(step)
    wanted = sample(logits, [rows[0], *masked]).ids
    sampler.mask(logits, torch.from_numpy(masks), torch.tensor([1, 2, 3], dtype=torch.int32))
    found = sampler.sample(logits, torch.arange(4), positions, sampler.mode(range(4)))
    assert torch.equal(found, wanted)
    assert all(
        mask[t // 32] >> t % 32 & 1 for mask, t in zip(masks, found[1:].tolist(), strict=True)
    )


def test_nothing_waits_for_the_device(sampler):
    slots, positions, logits = torch.arange(4), torch.full((4,), 5), logits_at(0)
    mask = torch.full((1, 2), -1, dtype=torch.int32), torch.tensor([2], dtype=torch.int32)
    with refuse_syncs():
        sampler.set_rows(range(4), [row_of(i, [3]) for i in range(4)])
        sampler.mask(logits, *mask)
        ids = sampler.sample(logits, slots, positions, sampler.mode(range(4)))
        found = device_logprobs(logits, ids, 3)
    assert torch.equal(ids, sample(logits, [row_of(i, [3]) for i in range(4)]).ids)
    assert (found.chosen <= found.top[:, 0]).all()


def test_two_rows_for_one_slot_are_refused(sampler):
    with pytest.raises(AssertionError, match="two rows"):
        sampler.set_rows([1, 1], [row_of(0, []), row_of(1, [])])


@pytest.mark.parametrize("top", [0, 3, 8, 200])
def test_logprobs_equal_the_cpus(top):
    logits = (torch.randn(70, 8, generator=torch.Generator().manual_seed(1)) * 2).round()
    logits[0] = -torch.inf
    logits[1, 3] = torch.nan
    logits[2, [2, 4]] = torch.inf
    logits[3, [1, 2]] = torch.tensor([0.0, -0.0])
    logits[4, ::2] = -torch.inf
    targets = [i % 8 for i in range(70)]
    found = device_logprobs(logits, torch.tensor(targets), top)
    wanted = token_logprobs(logits, targets, [top] * 70)
    for i, row in enumerate(wanted):
        assert found.top_ids[i].tolist() == [token for _, token in row.top]
        values = torch.tensor([logprob for logprob, _ in row.top])
        torch.testing.assert_close(found.top[i], values.float(), rtol=1e-6, atol=2e-6)
    chosen = torch.tensor([row.logprob for row in wanted])
    torch.testing.assert_close(found.chosen, chosen, rtol=1e-6, atol=2e-6)
