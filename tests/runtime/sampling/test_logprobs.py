"""Logprobs against log_softmax in float64."""

import numpy as np
import pytest
import torch

from branchline.runtime.sampling import token_logprobs


@pytest.fixture(scope="module")
def logits():
    return torch.randn(150, 5000, generator=torch.Generator().manual_seed(7)) * 4


def test_chosen_and_top_equal_log_softmax(logits):
    targets = [(i * 37) % 5000 for i in range(150)]
    counts = [(0, 1, 5, 20)[i % 4] for i in range(150)]
    expected = torch.log_softmax(logits.double(), -1).numpy()
    for i, found in enumerate(token_logprobs(logits, targets, counts)):
        assert found.token == targets[i]
        assert found.logprob == pytest.approx(expected[i, targets[i]], abs=1e-5)
        best = np.argsort(-expected[i], kind="stable")[: counts[i]]
        assert [token for _, token in found.top] == best.tolist()
        assert [logprob for logprob, _ in found.top] == pytest.approx(expected[i, best], abs=1e-5)


def test_a_part_of_the_rows_has_the_values_of_the_whole(logits):
    targets, counts = list(range(150)), [3] * 150
    whole = token_logprobs(logits, targets, counts)
    for start in (0, 1, 70, 149):
        assert token_logprobs(logits[start:], targets[start:], counts[start:]) == whole[start:]


def top_ids(logits, *counts):
    found = token_logprobs(logits, [0] * len(counts), counts)
    return [[token for _, token in row.top] for row in found]


@pytest.mark.parametrize("count", [1, 2, 3, 30, 40, 100])
def test_top_ties_go_to_the_lowest_ids(count):
    values = np.random.default_rng(1).integers(0, 3, size=(8, 40)).astype(np.float32)
    found = top_ids(torch.from_numpy(values), *[count] * 8)
    for row, top in zip(values, found, strict=True):
        assert top == sorted(range(40), key=lambda t: (-row[t], t))[:count]


def test_a_tie_wider_than_what_is_ranked():
    logits = torch.zeros(2, 1000)
    logits[1, 900] = 1.0
    assert top_ids(logits, 3, 2) == [[0, 1, 2], [900, 0]]


def test_a_chosen_token_has_the_logprob_of_its_alternative(logits):
    targets = logits.argmax(-1).tolist()
    for found in token_logprobs(logits, targets, [1] * 150):
        assert found.top == ((found.logprob, found.token),)


def test_impossible_tokens_are_minus_infinity():
    inf, nan = float("inf"), float("nan")
    logits = torch.tensor([[0.0, -inf, nan], [-inf, -inf, -inf]])
    first, second = token_logprobs(logits, [2, 0], [2, 1])
    assert first.logprob == -inf
    assert first.top == ((0.0, 0), (-inf, 1))
    assert (second.logprob, second.top) == (-inf, ((-inf, 0),))


def test_nothing_asked():
    assert token_logprobs(torch.empty(0, 5), [], []) == []
    assert top_ids(torch.zeros(2, 5), 0, 0) == [[], []]
