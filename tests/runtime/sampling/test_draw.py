"""The inverse of the cumulative sum at its edges, and the shares of many draws."""

import numpy as np
import pytest
import torch

from branchline.runtime.sampling import SampleRow, sample
from branchline.runtime.sampling.draw import draw, total
from branchline.sampling_params import SamplingParams

BELOW_ONE = 1 - 2**-53


@pytest.mark.parametrize("columns", [1, 3, 127, 128, 129, 1000])
@pytest.mark.parametrize("u", [0.0, 5e-324, 0.5, BELOW_ONE, 1.0])
def test_a_weight_of_zero_is_never_drawn(columns, u):
    for possible in {0, columns // 2, columns - 1}:
        weights = torch.zeros(1, columns)
        weights[0, possible] = 1.0
        assert draw(weights, torch.tensor([u], dtype=torch.float64)).tolist() == [possible]


def test_the_ends_of_the_unit_interval_are_the_first_and_the_last_possible():
    weights = torch.zeros(2, 300)
    weights[:, 7:290] = torch.rand(283, generator=torch.Generator().manual_seed(1)) + 1e-7
    uniforms = torch.tensor([0.0, BELOW_ONE], dtype=torch.float64)
    assert draw(weights, uniforms).tolist() == [7, 289]


def test_boundaries_belong_to_the_token_above():
    weights = torch.tensor([[1.0, 0.0, 1.0, 2.0]]).expand(5, 4)
    uniforms = torch.tensor([0.0, 0.2499, 0.25, 0.4999, 0.5], dtype=torch.float64)
    assert draw(weights.contiguous(), uniforms).tolist() == [0, 0, 2, 2, 3]


def test_weights_too_small_to_move_the_sum_do_not_break_it():
    weights = torch.full((1, 1000), 1e-30)
    weights[0, 500] = 1.0
    assert draw(weights, torch.tensor([BELOW_ONE], dtype=torch.float64)).tolist() == [500]


def test_total_is_the_same_alone_and_among_others():
    weights = torch.rand(16, 49152, generator=torch.Generator().manual_seed(2))
    among = total(weights)
    assert torch.equal(among, torch.cat([total(row[None]) for row in weights]))
    assert torch.allclose(among, weights.double().sum(-1), rtol=1e-7)


def shares_fit(ids, probabilities):
    """Pearson's test at five sigma over the possible tokens."""
    counts = np.bincount(ids, minlength=len(probabilities))
    possible = probabilities > 0
    assert counts[~possible].sum() == 0
    expected = len(ids) * probabilities[possible]
    assert expected.min() >= 5, "too few draws to judge"
    chi_square = ((counts[possible] - expected) ** 2 / expected).sum()
    freedom = max(possible.sum() - 1, 1)
    return chi_square < freedom + 5 * np.sqrt(2 * freedom)


LOGITS = torch.tensor([1.0, 2.5, 0.0, 2.0, -1.0, 2.5, 1.0, 0.5])


@pytest.mark.parametrize(
    ("params", "allowed"),
    [
        (SamplingParams(), range(8)),
        (SamplingParams(temperature=2.0), range(8)),
        (SamplingParams(top_k=4), [0, 1, 3, 5]),
        (SamplingParams(top_p=0.7), [1, 3, 5]),
        (SamplingParams(min_p=0.2), [0, 1, 3, 5, 6]),
        (SamplingParams(top_k=6, top_p=0.9, min_p=0.3), [1, 3, 5]),
        (SamplingParams(top_k=1), [1]),
    ],
    ids=["plain", "temperature", "top_k", "top_p", "min_p", "all", "greedy"],
)
def test_shares_of_many_draws(params, allowed):
    draws = 20_000
    rows = [SampleRow(params, seed=11, position=i, output_len=0) for i in range(draws)]
    ids = sample(LOGITS.expand(draws, -1).contiguous(), rows).ids.numpy()
    weights = np.zeros(8)
    weights[list(allowed)] = np.exp(LOGITS.numpy()[list(allowed)] / params.temperature)
    assert shares_fit(ids, weights / weights.sum())


def test_shares_over_a_real_vocabulary():
    logits = torch.randn(49152, generator=torch.Generator().manual_seed(4)) * 2
    batch = logits.expand(128, -1).contiguous()
    ids = np.concatenate(
        [
            sample(batch, [SampleRow(SamplingParams(), s, p, 0) for s in range(128)]).ids.numpy()
            for p in range(16)
        ]
    )
    probabilities = torch.softmax(logits.double(), -1).numpy()
    assert shares_fit(ids // 1024, probabilities.reshape(48, 1024).sum(-1))
