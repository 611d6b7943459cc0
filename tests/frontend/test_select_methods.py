from __future__ import annotations

import math
from collections import Counter

import pytest

import branchline as bl
from branchline.protocol import ChoiceScore, Scored, Usage

from .fake_backend import FakeBackend

# Log-probabilities of the tokens, after the prompt and after a neutral text.
CHOICES = {"yes": (-1.0,), "né": (-0.5, -0.75), "perhaps": (-0.75, -0.25, -0.5)}
NEUTRAL = {"yes": (-2.5,), "né": (-1.0, -0.25), "perhaps": (-1.0, -0.5, -0.5)}


class Tables(FakeBackend):
    """Other scores after the neutral text."""

    async def score(self, request):
        await self._arrive(request)
        table = NEUTRAL if request.prompt == (("program", "Answer:"),) else CHOICES
        scores = tuple(
            ChoiceScore(
                tuple(range(len(logprobs))), logprobs, (None, *(-0.25,) * (len(logprobs) - 1))
            )
            for logprobs in table.values()
        )
        return Scored(request.rid, scores, Usage(1, 0, 0))


def select(**settings):
    backend = Tables()
    state = bl.function(lambda s: s.__iadd__("q" + bl.select("x", list(CHOICES), **settings))).run(
        backend=backend
    )
    return state["x"], state.get_meta_info("x"), backend.requests


def softmax(scores):
    weights = [math.exp(score) for score in scores]
    return pytest.approx([weight / sum(weights) for weight in weights])


SUMS = [-1.0, -1.25, -1.5]
MEANS = [-1.0, -0.625, -0.5]
BYTES = [-1.0 / 3, -1.25 / 3, -1.5 / 7]  # "né" has three
GAINS = [-1.0, (-0.5 - 0.5) / 2, (-0.75 + 0 - 0.25) / 3]


@pytest.mark.parametrize(
    ("method", "short", "choice", "scores"),
    [
        (bl.token_length_normalized, "token", "perhaps", MEANS),
        (bl.total_likelihood, "sum", "yes", SUMS),
        (bl.byte_length_normalized, "byte", "perhaps", BYTES),
        (bl.unconditional_likelihood_normalized, "unconditional", "perhaps", GAINS),
    ],
)
def test_each_method_takes_its_best_and_says_how_likely_each_is(
    method, short, choice, scores
) -> None:
    for given in (method, short):
        taken, meta, requests = select(choices_method=given)
        assert taken == choice
        assert meta["probabilities"] == softmax(scores)
        assert len(requests) == 1
    assert meta["normalized_prompt_logprobs"] == MEANS


def test_a_method_that_ranks_has_the_likelihoods_as_probabilities() -> None:
    taken, meta, _ = select(choices_method="greedy")
    assert taken == "né"
    assert meta["probabilities"] == softmax(SUMS)
    for setting in ({"temperature": 1.0}, {"calibration": "Answer:"}):
        with pytest.raises(bl.ProgramError, match="GreedyTokenSelection ranks choices"):
            select(choices_method="greedy", **setting)


def test_calibration_subtracts_what_a_neutral_text_says() -> None:
    taken, meta, requests = select(choices_method="sum", calibration="Answer:")
    scores = [-1.0 + 2.5, -1.25 + 1.25, -1.5 + 2.0]
    assert meta["calibrated_scores"] == scores
    assert taken == "yes"
    assert meta["probabilities"] == softmax(scores)
    assert len(requests) == 2
    taken, meta, _ = select(calibration="Answer:")
    assert meta["calibrated_scores"] == pytest.approx([1.5, 0.0, -0.5 + 2 / 3])
    _, meta, requests = select(choices_method="unconditional", calibration="Answer:")
    assert all(request.unconditional for request in requests)
    assert meta["calibrated_scores"] == pytest.approx([1.5, 0.0, -0.5 + 2 / 3])


def test_a_temperature_draws_by_the_scores() -> None:
    drawn = Counter()
    for seed in range(2000):
        taken, meta, _ = select(choices_method="sum", temperature=0.5, seed=seed)
        drawn[taken] += 1
        assert meta["seed"] == seed
    expected = softmax([score / 0.5 for score in SUMS]).expected
    assert meta["probabilities"] == pytest.approx(expected)
    for choice, probability in zip(CHOICES, expected, strict=True):
        spread = math.sqrt(2000 * probability * (1 - probability))
        assert abs(drawn[choice] - 2000 * probability) < 4 * spread


def test_draws_repeat_with_the_runs_seed_and_differ_in_branches() -> None:
    def body(s):
        s += "q"
        forks = s.fork(12)
        forks += bl.select("x", list(CHOICES), temperature=5.0)
        forks.join()

    def drawn(seed):
        return bl.function(body).run(backend=Tables(), seed=seed)["x"]

    assert drawn(1) == drawn(1)
    assert len(set(drawn(1))) > 1
    assert drawn(1) != drawn(2)


def test_almost_no_temperature_is_none() -> None:
    taken, meta, _ = select(temperature=1e-6)
    assert taken == "perhaps"
    assert "seed" not in meta


def test_a_method_of_ones_own_may_score() -> None:
    class Worst(bl.ChoicesSamplingMethod):
        def __call__(self, *, choices, normalized_prompt_logprobs, **rest):
            scores = [-score for score in normalized_prompt_logprobs]
            return bl.ChoicesDecision(choices[0], {"own": True}, scores)

    taken, meta, _ = select(choices_method=Worst())
    assert (taken, meta["own"]) == ("yes", True)
    assert meta["probabilities"] == softmax([-score for score in MEANS])


def test_gen_with_choices_passes_its_settings_on() -> None:
    node = bl.gen(
        "x", choices=["a"], choices_method="sum", temperature=0.5, seed=4, timeout=2, max_tokens=1
    )
    expected = bl.select("x", ["a"], 0.5, bl.total_likelihood, seed=4, timeout=2)
    assert node == expected
