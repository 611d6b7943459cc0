"""Takes one of a select's choices: a method's scores, calibration, probabilities, a draw."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, Any

from branchline.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from branchline.choices import ChoicesDecision, ChoicesSamplingMethod, LogprobTriple
    from branchline.nodes import Select
    from branchline.protocol import Scored


def weigh(
    node: Select, scored: Scored, neutral: Scored | None, seed: int
) -> tuple[str, dict[str, Any]]:
    """The choice that is taken, and what is known about it.

    Calibrated, a choice's score is how much more the prompt says for it than the neutral text does
    (contextual calibration, Zhao et al. 2021; with a text such as "Answer:" it is the conditional
    mutual information of Holtzman et al. 2021). The meta info has `probabilities`, which are
    exp(score) in proportion; at a temperature exp(score / temperature), what was drawn from. Where
    a method only ranks, they come from the likelihoods of the whole choices.

    Raises:
        InvalidRequest: a choice has no tokens, or a method that only ranks cannot be calibrated or
            drawn from.
    """
    taken = decide(node.method, node.choices, scored)
    decision, meta = taken.decision, dict(taken.meta_info)
    scores = taken.scores
    if scores is None:
        _only_ranks(node)
        meta["probabilities"] = _softmax([sum(choice.logprobs) for choice in scored.choices])
        return decision, meta
    if neutral is not None:
        apart = decide(node.method, node.choices, neutral).scores
        assert apart is not None, "the method has scored before"
        scores = [with_prompt - without for with_prompt, without in zip(scores, apart, strict=True)]
        decision = node.choices[max(range(len(scores)), key=scores.__getitem__)]
        meta["calibrated_scores"] = scores
    if node.temperature > 0:
        scores = [score / node.temperature for score in scores]
    meta["probabilities"] = _softmax(scores)
    if node.temperature > 0:
        decision = node.choices[_draw(meta["probabilities"], seed)]
        meta["seed"] = seed
    return decision, meta


def decide(
    method: ChoicesSamplingMethod, choices: Sequence[str], scored: Scored
) -> ChoicesDecision:
    """Decide by a method from the runtime's scores.

    Raises:
        InvalidRequest: a choice has no tokens.
    """
    for choice, score in zip(choices, scored.choices, strict=True):
        if not score.logprobs:
            raise InvalidRequest(f"the choice {choice!r} has no tokens after this prompt")
    unconditional = None
    if method.requires_unconditional_logprobs:
        unconditional = [_triples(score.unconditional or (), score.ids) for score in scored.choices]
    return method(
        choices=choices,
        normalized_prompt_logprobs=[
            sum(score.logprobs) / len(score.logprobs) for score in scored.choices
        ],
        input_token_logprobs=[_triples(score.logprobs, score.ids) for score in scored.choices],
        output_token_logprobs=[[] for _ in choices],
        unconditional_token_logprobs=unconditional,
    )


def _only_ranks(node: Select) -> None:
    for name, value in (("temperature", node.temperature), ("calibration", node.calibration)):
        if value:
            raise InvalidRequest(
                f"{name}={value!r}: {type(node.method).__name__} ranks choices without scoring "
                'them; take another method, such as "sum"'
            )


def _softmax(scores: Sequence[float]) -> list[float]:
    highest = max(scores)
    weights = [math.exp(score - highest) for score in scores]
    total = sum(weights)
    return [weight / total for weight in weights]


def _draw(probabilities: Sequence[float], seed: int) -> int:
    """An index, drawn by these probabilities; a function of the seed."""
    (index,) = random.Random(seed).choices(range(len(probabilities)), probabilities)
    return index


def _triples(logprobs: Sequence[float | None], ids: Sequence[int]) -> list[LogprobTriple]:
    return [[logprob, token, None] for logprob, token in zip(logprobs, ids, strict=True)]
