"""What is promised beside the right token: independence, ties, and an answer for anything."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from branchline.runtime.sampling import SampleRow, sample
from branchline.sampling_params import SamplingParams

VOCAB = 49152
GREEDY = SamplingParams(temperature=0.0)


def row(params, **fields):
    return SampleRow(params, **{"seed": 1, "position": 9, "output_len": 0, **fields})


def ids_of(logits, *rows):
    return sample(torch.tensor(logits, dtype=torch.float32), rows).ids.tolist()


@pytest.fixture(scope="module")
def logits():
    return torch.randn(64, VOCAB, generator=torch.Generator().manual_seed(0)) * 3


def mixed_rows():
    output = np.arange(100, dtype=np.int32) % 7
    kinds = [
        row(GREEDY),
        row(SamplingParams()),
        row(SamplingParams(top_p=0.9)),
        row(SamplingParams(top_k=40, temperature=0.7)),
        row(SamplingParams(top_k=2000, top_p=0.8)),
        row(SamplingParams(min_p=0.1)),
        row(SamplingParams(temperature=0.0, logit_bias={5: 100.0})),
        row(
            SamplingParams(frequency_penalty=0.5, repetition_penalty=1.2),
            output_len=100,
            output_ids=output,
            prompt_ids=np.arange(50),
        ),
        row(SamplingParams(min_tokens=3), stop_ids=(0, 1, 2)),
    ]
    return [replace(kinds[i % len(kinds)], seed=i, position=1000 + i) for i in range(64)]


def test_a_row_alone_draws_what_it_draws_among_64(logits):
    rows = mixed_rows()
    together = sample(logits, rows).ids
    alone = [int(sample(logits[i : i + 1], [rows[i]]).ids[0]) for i in range(64)]
    assert together.tolist() == alone
    order = torch.randperm(64, generator=torch.Generator().manual_seed(1)).tolist()
    shuffled = sample(logits[order], [rows[i] for i in order]).ids
    assert shuffled.tolist() == [alone[i] for i in order]


def test_greedy_rows_are_not_disturbed(logits):
    before = logits.clone()
    rows = mixed_rows()
    greedy = [i for i, r in enumerate(rows) if r.params == GREEDY]
    assert torch.equal(sample(logits, rows).ids[greedy], logits[greedy].argmax(-1))
    assert torch.equal(logits, before)


def test_a_batch_of_greedy_rows_is_the_argmax(logits):
    sampled = sample(logits, [row(GREEDY)] * 64)
    assert torch.equal(sampled.ids, logits.argmax(-1))
    assert sampled.ids.dtype == torch.int64


def test_the_draw_depends_on_seed_and_position_only():
    logits = torch.zeros(1, 1000)
    drawn = {
        (s, p): int(sample(logits, [row(SamplingParams(), seed=s, position=p)]).ids[0])
        for s in range(6)
        for p in range(6)
    }
    assert len(set(drawn.values())) > 30
    later = row(SamplingParams(), seed=2, position=3, output_len=50)
    assert int(sample(logits, [later]).ids[0]) == drawn[2, 3]


@pytest.mark.parametrize(
    "params",
    [GREEDY, SamplingParams(top_k=1), SamplingParams(top_p=1e-9)],
    ids=["greedy", "top_k", "top_p"],
)
def test_ties_of_the_first_go_to_the_lowest_id(params):
    assert ids_of([[1.0, 3.0, 3.0, 3.0]], row(params)) == [1]


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        (SamplingParams(top_k=3), {2, 3, 5}),
        (SamplingParams(top_p=0.5), {2, 3, 5}),
        (SamplingParams(top_k=5, top_p=0.41), {2, 3, 5}),
        (SamplingParams(min_p=1.0), {2, 3, 5, 300, 301, 302}),
    ],
    ids=["top_k", "top_p", "top_k+top_p", "min_p"],
)
def test_ties_at_a_boundary_go_to_the_lowest_ids(params, kept):
    logits = torch.full((400, 5000), -1e4)
    logits[:, [2, 3, 5, 300, 301, 302]] = 1.0
    rows = [row(params, position=i) for i in range(400)]
    assert set(sample(logits, rows).ids.tolist()) == kept


def test_the_token_that_reaches_top_p_survives():
    logits = torch.log(torch.tensor([[0.5, 0.25, 0.25]])).expand(200, -1).contiguous()
    for top_p, kept in ((0.5, {0}), (0.51, {0, 1}), (0.75, {0, 1}), (0.76, {0, 1, 2})):
        rows = [row(SamplingParams(top_p=top_p), position=i) for i in range(200)]
        assert set(sample(logits, rows).ids.tolist()) == kept


def test_top_p_takes_its_share_of_what_top_k_left():
    weights = torch.full((200, 5000), 0.01)
    weights[:, :300] = 1.0
    weights[:, 7] = 300.0  # over half of the first 300, under half of all
    for top_k, likely in ((300, True), (-1, False)):
        rows = [row(SamplingParams(top_k=top_k, top_p=0.5), position=i) for i in range(200)]
        ids = sample(weights.log(), rows).ids.tolist()
        assert (set(ids) == {7}) is likely


@pytest.mark.parametrize("temperature", [1e-3, 1e-38, 1e-46, 1e-300])
def test_the_smallest_temperatures_take_the_likeliest(temperature):
    for params in (SamplingParams(temperature=temperature), SamplingParams(top_p=0.9)):
        cold = row(replace(params, temperature=temperature))
        assert ids_of([[0.0, 3.0, 2.0], [-40.0, -INF, NAN]], cold, cold) == [1, 0]


def test_bias_is_added():
    bias = SamplingParams(temperature=0.0, logit_bias={2: 100.0, 0: -100.0})
    assert ids_of([[50.0, 0.0, -49.0], [50.0, 0.0, -150.0]], row(bias), row(bias)) == [2, 1]
    assert ids_of([[60.0, -45.0, -45.0]], row(replace(bias, logit_bias={0: -100.0}))) == [0]


def test_repetition_counts_prompt_and_output_whatever_the_sign():
    params = SamplingParams(temperature=0.0, repetition_penalty=2.0)
    seen = row(
        params, output_len=3, prompt_ids=np.array([0]), output_ids=np.array([1, 1, 1], np.int32)
    )
    assert ids_of([[3.0, 3.5, 1.8]], seen) == [2]
    assert ids_of([[-1.0, -1.0, -1.9]], seen) == [2]
    assert ids_of([[3.0, 3.5, 1.7]], seen) == [1]  # once, however often it was said


def test_frequency_and_presence_count_output_only():
    logits = [[1.0, 2.0, 1.5]]
    said = {"output_len": 2, "output_ids": np.array([1, 1]), "prompt_ids": np.array([2])}
    assert ids_of(logits, row(SamplingParams(temperature=0, presence_penalty=0.4), **said)) == [1]
    assert ids_of(logits, row(SamplingParams(temperature=0, frequency_penalty=0.4), **said)) == [2]
    assert ids_of(logits, row(SamplingParams(temperature=0, presence_penalty=0.6), **said)) == [2]


def test_penalties_with_stale_output_are_a_bug():
    params = SamplingParams(presence_penalty=1.0)
    with pytest.raises(AssertionError, match="all of the output"):
        ids_of([[1.0, 2.0]], row(params, output_len=2, output_ids=np.array([1])))


def test_stop_ids_are_masked_until_min_tokens():
    params = SamplingParams(temperature=0.0, min_tokens=2)
    rows = [row(params, stop_ids=(0, 2), output_len=n) for n in (0, 1, 2)]
    assert ids_of([[9.0, 1.0, 8.0]] * 3, *rows) == [1, 1, 0]


@pytest.mark.parametrize("stop_id", [VOCAB, VOCAB + 5, -1])
def test_a_stop_id_outside_the_vocabulary_touches_nobody(logits, stop_id):
    rows = [row(SamplingParams(min_tokens=5), stop_ids=(stop_id,)), row(GREEDY)]
    expected = sample(logits[:2], [row(SamplingParams()), row(GREEDY)]).ids
    assert torch.equal(sample(logits[:2], rows).ids, expected)


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    "params",
    [GREEDY, SamplingParams(), SamplingParams(top_k=2), SamplingParams(top_p=0.9, min_p=0.1)],
    ids=["greedy", "plain", "top_k", "top_p+min_p"],
)
@pytest.mark.parametrize(
    ("logits", "expected"),
    [
        ([NAN, NAN, NAN], 0),
        ([-INF, -INF, -INF], 0),
        ([NAN, -INF, 3.0], 2),
        ([1.0, INF, INF], 1),
        ([-INF, -3e38, NAN], 1),
        ([-3e38, 3e38, -3e38], 1),
    ],
    ids=str,
)
def test_any_logits_give_a_token_and_leave_the_neighbour_alone(params, logits, expected):
    healthy = [0.0, 2.0, 1.0]
    alone = ids_of([healthy], row(params, seed=5))
    assert ids_of([logits, healthy], row(params), row(params, seed=5)) == [expected, *alone]


def test_a_mask_over_everything_still_gives_a_token():
    params = SamplingParams(min_tokens=1)
    assert ids_of([[1.0, 2.0]], row(params, stop_ids=(0, 1))) == [0]


def test_no_rows():
    sampled = sample(torch.empty(0, 10), [])
    assert sampled.ids.shape == (0,)
