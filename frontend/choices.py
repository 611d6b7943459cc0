"""How `select` decides between choices from their tokens' log-probabilities.

Ties go to the lowest index. A method may be replaced by an own subclass of `ChoicesSamplingMethod`.
Log-probabilities come as `[logprob, token id, None]`, one list for each choice. A mean counts every
token, also one of log-probability 0.0.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from branchline.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from branchline.protocol import Scored

LogprobTriple = list[Any]  # [logprob: float | None, token: int, text: None]


@dataclass(frozen=True, slots=True)
class ChoicesDecision:
    """The choice that was taken, and what it was taken by."""

    decision: str
    meta_info: dict[str, Any] = field(default_factory=dict)


class ChoicesSamplingMethod(ABC):
    """A way to decide between choices."""

    @property
    def requires_unconditional_logprobs(self) -> bool:
        """Whether the choices are scored without the prompt as well."""
        return False

    @abstractmethod
    def __call__(
        self,
        *,
        choices: Sequence[str],
        normalized_prompt_logprobs: list[float],
        input_token_logprobs: list[list[LogprobTriple]],
        output_token_logprobs: list[list[LogprobTriple]],
        unconditional_token_logprobs: list[list[LogprobTriple]] | None = None,
    ) -> ChoicesDecision:
        """Decide.

        Args:
            choices: the choices.
            normalized_prompt_logprobs: the mean log-probability of each choice's tokens.
            input_token_logprobs: each choice's tokens, given the prompt.
            output_token_logprobs: empty lists: scoring generates nothing.
            unconditional_token_logprobs: each choice's tokens without the prompt, if required.
        """


class TokenLengthNormalized(ChoicesSamplingMethod):
    """The highest mean log-probability. Favours long choices with predictable tails."""

    def __call__(
        self,
        *,
        choices: Sequence[str],
        normalized_prompt_logprobs: list[float],
        input_token_logprobs: list[list[LogprobTriple]],
        output_token_logprobs: list[list[LogprobTriple]],
        **_: Any,
    ) -> ChoicesDecision:
        """Decide by the means."""
        best = _argmax(normalized_prompt_logprobs)
        return ChoicesDecision(
            choices[best],
            {
                "normalized_prompt_logprobs": normalized_prompt_logprobs,
                "input_token_logprobs": input_token_logprobs,
                "output_token_logprobs": output_token_logprobs,
            },
        )


class GreedyTokenSelection(ChoicesSamplingMethod):
    """The choice that greedy decoding would take: by its first token, then its second, and so on.

    Where a choice has run out of tokens, its mean stands in for the token.
    """

    def __call__(
        self,
        *,
        choices: Sequence[str],
        normalized_prompt_logprobs: list[float],
        input_token_logprobs: list[list[LogprobTriple]],
        output_token_logprobs: list[list[LogprobTriple]],
        **_: Any,
    ) -> ChoicesDecision:
        """Decide column by column."""
        matrix = _padded_with_means(_logprobs(input_token_logprobs))
        remaining = list(range(len(choices)))
        for column in range(len(matrix[0])):
            best = max(matrix[row][column] for row in remaining)
            remaining = [row for row in remaining if matrix[row][column] == best]
            if len(remaining) == 1:
                break
        return ChoicesDecision(
            choices[remaining[0]],
            {
                "normalized_prompt_logprobs": normalized_prompt_logprobs,
                "input_token_logprobs": input_token_logprobs,
                "output_token_logprobs": output_token_logprobs,
                "greedy_logprob_matrix": matrix,
            },
        )


class UnconditionalLikelihoodNormalized(ChoicesSamplingMethod):
    """The choice that the prompt helps most: by the mean of what it adds to the log-probability."""

    @property
    def requires_unconditional_logprobs(self) -> bool:
        """They are subtracted."""
        return True

    def __call__(
        self,
        *,
        choices: Sequence[str],
        normalized_prompt_logprobs: list[float],
        input_token_logprobs: list[list[LogprobTriple]],
        output_token_logprobs: list[list[LogprobTriple]],
        unconditional_token_logprobs: list[list[LogprobTriple]] | None = None,
    ) -> ChoicesDecision:
        """Decide by the mean gains."""
        if unconditional_token_logprobs is None:
            raise ValueError("unconditional log-probabilities are required by this method")
        normalized = [
            _mean_gain(given, alone)
            for given, alone in zip(
                _logprobs(input_token_logprobs),
                _logprobs(unconditional_token_logprobs),
                strict=True,
            )
        ]
        return ChoicesDecision(
            choices[_argmax(normalized)],
            {
                "normalized_prompt_logprobs": normalized_prompt_logprobs,
                "input_token_logprobs": input_token_logprobs,
                "output_token_logprobs": output_token_logprobs,
                "unconditional_token_logprobs": unconditional_token_logprobs,
                "normalized_unconditional_prompt_logprobs": normalized,
            },
        )


token_length_normalized = TokenLengthNormalized()
greedy_token_selection = GreedyTokenSelection()
unconditional_likelihood_normalized = UnconditionalLikelihoodNormalized()


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
        normalized_prompt_logprobs=[_mean(score.logprobs) for score in scored.choices],
        input_token_logprobs=[_triples(score.logprobs, score.ids) for score in scored.choices],
        output_token_logprobs=[[] for _ in choices],
        unconditional_token_logprobs=unconditional,
    )


def _triples(logprobs: Sequence[float | None], ids: Sequence[int]) -> list[LogprobTriple]:
    return [[logprob, token, None] for logprob, token in zip(logprobs, ids, strict=True)]


def _logprobs(choices: list[list[LogprobTriple]]) -> list[list[float]]:
    """The bare numbers; a first token without context counts as 0.0."""
    return [[triple[0] or 0.0 for triple in choice] for choice in choices]


def _padded_with_means(rows: list[list[float]]) -> list[list[float]]:
    width = max(len(row) for row in rows)
    return [row + [_mean(row)] * (width - len(row)) for row in rows]


def _mean_gain(given: list[float], alone: list[float]) -> float:
    if len(given) != len(alone):
        raise ValueError(f"{len(given)} tokens with the prompt, {len(alone)} without")
    return _mean([a - b for a, b in zip(given, alone, strict=True)])


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _argmax(values: Sequence[float]) -> int:
    return max(range(len(values)), key=values.__getitem__)
