from __future__ import annotations

import pytest

from branchline import (
    greedy_token_selection,
    token_length_normalized,
    unconditional_likelihood_normalized,
)
from branchline.choices import ChoicesDecision, ChoicesSamplingMethod
from branchline.errors import InvalidRequest
from branchline.protocol import ChoiceScore, Scored, Usage
from branchline.weighing import decide

CHOICES = ["organ", "organism", "antidisestablishmentarianism"]
LOGPROBS = [[-0.1], [-0.1, -0.3], [-0.4, -0.25, -0.1, *[-0.01] * 5]]
ALONE = [[None], [None, -1.4], [None, -0.25, -0.1, *[-0.01] * 5]]


def triples(rows):
    return [[[logprob, 7, None] for logprob in row] for row in rows]


def call(method, choices=CHOICES, normalized=(-0.1, -0.2, -0.05), given=LOGPROBS, alone=None):
    return method(
        choices=choices,
        normalized_prompt_logprobs=list(normalized),
        input_token_logprobs=triples(given),
        output_token_logprobs=[[] for _ in choices],
        unconditional_token_logprobs=None if alone is None else triples(alone),
    )


def test_the_default_takes_the_highest_mean() -> None:
    decision = call(token_length_normalized)
    assert decision.decision == "antidisestablishmentarianism"
    assert decision.meta_info["normalized_prompt_logprobs"] == [-0.1, -0.2, -0.05]


def test_greedy_goes_token_by_token_with_means_where_a_choice_has_ended() -> None:
    decision = call(greedy_token_selection)
    assert decision.decision == "organ"  # -0.1 against -0.3 in the second column
    matrix = decision.meta_info["greedy_logprob_matrix"]
    assert matrix[0] == [-0.1] * 8
    assert matrix[1] == [-0.1, -0.3, *[-0.2] * 6]
    assert matrix[2] == LOGPROBS[2]


def test_unconditional_takes_the_choice_the_prompt_helps_most() -> None:
    decision = call(unconditional_likelihood_normalized, alone=ALONE)
    assert decision.decision == "organism"
    assert decision.meta_info["normalized_unconditional_prompt_logprobs"] == pytest.approx(
        [-0.1, 0.5, -0.05]
    )


def test_unconditional_needs_as_many_tokens_with_and_without_the_prompt() -> None:
    with pytest.raises(ValueError, match="1 tokens with the prompt, 2 without"):
        call(unconditional_likelihood_normalized, ["a"], [-1], [[-1.0]], [[None, -1.0]])
    with pytest.raises(ValueError, match="required"):
        call(unconditional_likelihood_normalized)


@pytest.mark.parametrize(
    "method",
    [token_length_normalized, greedy_token_selection, unconditional_likelihood_normalized],
)
def test_ties_go_to_the_lowest_index(method) -> None:
    rows = [[-2.0, -2.0], [-1.0, -1.0], [-1.0, -1.0]]
    decision = call(method, ["a", "b", "c"], [-2.0, -1.0, -1.0], rows, [[None, -1.0]] * 3)
    assert decision.decision == "b"


def scored(*rows, alone=None):
    return Scored(
        "r",
        tuple(
            ChoiceScore(tuple(range(len(row))), tuple(row), tuple(alone[i]) if alone else None)
            for i, row in enumerate(rows)
        ),
        Usage(1, 0, 0),
    )


def test_a_certain_token_counts_in_the_mean() -> None:
    # Without the 0.0 the means would be -1.0 and -0.9.
    decision = decide(token_length_normalized, ["a b", "c"], scored([-1.0, 0.0], [-0.9]))
    assert decision.decision == "a b"
    assert decision.meta_info["normalized_prompt_logprobs"] == [-0.5, -0.9]
    assert decision.meta_info["input_token_logprobs"] == [
        [[-1.0, 0, None], [0.0, 1, None]],
        [[-0.9, 0, None]],
    ]


def test_a_choice_without_tokens_is_an_error() -> None:
    with pytest.raises(InvalidRequest, match="'' has no tokens"):
        decide(token_length_normalized, ["a", ""], scored([-1.0], []))


def test_an_own_method_gets_the_scores() -> None:
    class Worst(ChoicesSamplingMethod):
        requires_unconditional_logprobs = True

        def __call__(self, *, choices, normalized_prompt_logprobs, **rest):
            worst = min(range(len(choices)), key=normalized_prompt_logprobs.__getitem__)
            return ChoicesDecision(choices[worst], rest)

    decision = decide(Worst(), ["a", "b"], scored([-1.0], [-2.0], alone=[[None], [None]]))
    assert decision.decision == "b"
    assert decision.meta_info["unconditional_token_logprobs"] == [[[None, 0, None]]] * 2
    assert decision.meta_info["output_token_logprobs"] == [[], []]
