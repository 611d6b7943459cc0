"""How `select` decides between choices from their tokens' log-probabilities.

Ties go to the lowest index. A method may be replaced by an own subclass of `ChoicesSamplingMethod`.
Log-probabilities come as `[logprob, token id, None]`, one list for each choice. A mean counts every
token, also one of log-probability 0.0.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

LogprobTriple = list[Any]  # [logprob: float | None, token: int, text: None]


@dataclass(frozen=True, slots=True)
class ChoicesDecision:
    """The choice that was taken, and what it was taken by."""

    decision: str
    meta_info: dict[str, Any] = field(default_factory=dict)
    # Of each choice, comparable as log-probabilities are; None: the method only ranks them
    scores: Sequence[float] | None = None


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


def _told(
    normalized_prompt_logprobs: list[float],
    input_token_logprobs: list[list[LogprobTriple]],
    output_token_logprobs: list[list[LogprobTriple]],
) -> dict[str, Any]:
    """The meta info of every method: what it was given."""
    return {
        "normalized_prompt_logprobs": normalized_prompt_logprobs,
        "input_token_logprobs": input_token_logprobs,
        "output_token_logprobs": output_token_logprobs,
    }


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
        meta = _told(normalized_prompt_logprobs, input_token_logprobs, output_token_logprobs)
        return _highest(choices, normalized_prompt_logprobs, meta)


class _Likelihood(ChoicesSamplingMethod):
    """By the log-probability of the whole choice, divided by what `_length` says."""

    @staticmethod
    @abstractmethod
    def _length(choice: str, /) -> int:
        """What a choice's log-probability is divided by."""

    def __call__(
        self,
        *,
        choices: Sequence[str],
        normalized_prompt_logprobs: list[float],
        input_token_logprobs: list[list[LogprobTriple]],
        output_token_logprobs: list[list[LogprobTriple]],
        **_: Any,
    ) -> ChoicesDecision:
        """Decide by the sums."""
        sums = [sum(row) for row in _logprobs(input_token_logprobs)]
        scores = [total / self._length(choice) for choice, total in zip(choices, sums, strict=True)]
        meta = _told(normalized_prompt_logprobs, input_token_logprobs, output_token_logprobs)
        return _highest(choices, scores, meta)


class TotalLikelihood(_Likelihood):
    """The likeliest text. Favours short choices."""

    @staticmethod
    def _length(_: str, /) -> int:
        return 1


class ByteLengthNormalized(_Likelihood):
    """The highest log-probability for each byte of UTF-8: however a tokenizer cuts the choices."""

    @staticmethod
    def _length(choice: str, /) -> int:
        return len(choice.encode())


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
        meta = _told(normalized_prompt_logprobs, input_token_logprobs, output_token_logprobs) | {
            "unconditional_token_logprobs": unconditional_token_logprobs,
            "normalized_unconditional_prompt_logprobs": normalized,
        }
        return _highest(choices, normalized, meta)


token_length_normalized = TokenLengthNormalized()
greedy_token_selection = GreedyTokenSelection()
unconditional_likelihood_normalized = UnconditionalLikelihoodNormalized()
total_likelihood = TotalLikelihood()
byte_length_normalized = ByteLengthNormalized()

# The short names that `select(choices_method=…)` takes as well.
METHODS: dict[str, ChoicesSamplingMethod] = {
    "token": token_length_normalized,
    "greedy": greedy_token_selection,
    "unconditional": unconditional_likelihood_normalized,
    "sum": total_likelihood,
    "byte": byte_length_normalized,
}


def _highest(
    choices: Sequence[str], scores: Sequence[float], meta: dict[str, Any]
) -> ChoicesDecision:
    best = max(range(len(scores)), key=scores.__getitem__)
    return ChoicesDecision(choices[best], meta, scores)


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
