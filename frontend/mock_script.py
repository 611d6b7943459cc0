"""What a `Mock` says: a script that knows the next answer, and how an answer comes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

from branchline.errors import InvalidRequest
from branchline.protocol import ChoiceScore

if TYPE_CHECKING:
    from branchline.mock_tokens import Vocabulary
    from branchline.protocol import Score

A = TypeVar("A")

PICKED = -0.1  # the log-probability of each token of the choice that is picked
LEFT = -5.0  # of each token of a choice that is not
ALONE = -1.0  # of each token without the prompt


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer of a `Mock`, and how it comes.

    Attributes:
        text: what is said; of a sequence, each item is streamed in one piece.
        delay: seconds before the first piece.
        pause: seconds between two pieces.
        error: raised after all of the text, in place of the end.
        logprob: of each token.
    """

    text: str | Sequence[str]
    delay: float = 0.0
    pause: float = 0.0
    error: Exception | None = None
    logprob: float = -0.5


Answer: TypeAlias = str | Reply | Exception
Answers: TypeAlias = (
    Answer | Sequence[Answer] | Mapping[str, Answer | Sequence[Answer]] | Callable[[str], Answer]
)
Likelihoods: TypeAlias = Mapping[str, float | Sequence[float]]
Pick: TypeAlias = str | Likelihoods | Exception
Picks: TypeAlias = (
    Pick | Sequence[Pick] | Mapping[str, Pick | Sequence[Pick]] | Callable[[str], Pick]
)


class Script(Generic[A]):
    """Answers to prompts: always the same, a list in turn, by pattern, or what a function says."""

    def __init__(self, name: str, source: object, default: A | None = None) -> None:
        self._name = name
        self._source = source
        self._default = default
        self._used: dict[str | None, int] = {}  # answers taken of each list, by its pattern

    def next(self, prompt: str) -> A:
        """The answer to a prompt.

        Raises:
            InvalidRequest: a list has no more answers, or no pattern is found in the prompt.
        """
        source = self._source
        if isinstance(source, Mapping):
            return self._by_pattern(source, prompt)
        if callable(source):
            answer: A = source(prompt)
            return answer
        return self._one(None, source, prompt)

    def _by_pattern(self, source: Mapping[str, object], prompt: str) -> A:
        """The answer of the pattern that is found last in the prompt."""
        furthest, best = -1, None
        for pattern in source:
            ends = [found.end() for found in re.finditer(pattern, prompt)]
            if ends and ends[-1] > furthest:
                furthest, best = ends[-1], pattern
        if best is not None:
            return self._one(best, source[best], prompt)
        if self._default is None:
            raise InvalidRequest(
                f"none of the mock's {self._name} fits the prompt {prompt!r}: it has "
                f"{', '.join(map(repr, source))}; add a pattern, or a default"
            )
        return self._default

    def _one(self, key: str | None, source: object, prompt: str) -> A:
        if isinstance(source, str) or not isinstance(source, Sequence):
            return source  # type: ignore[return-value]
        position = self._used.get(key, 0)
        if position < len(source):
            self._used[key] = position + 1
            return source[position]  # type: ignore[no-any-return]
        if self._default is None:
            raise InvalidRequest(
                f"the mock has no more {self._name}: all {len(source)} have been given before the "
                f"prompt {prompt!r}; list more of them, or give a default"
            )
        return self._default


def choice_scores(
    request: Score, pick: str | Likelihoods | None, words: Vocabulary
) -> tuple[ChoiceScore, ...]:
    """The log-probabilities of the choices that make a select take the pick; None is the first.

    Raises:
        InvalidRequest: the pick is not among the choices.
    """
    if pick is None:
        pick = request.choices[0]
    if isinstance(pick, str):
        if pick not in request.choices:
            raise InvalidRequest(
                f"the mock picks {pick!r}, which is not among the choices {request.choices!r}"
            )
        pick = {pick: PICKED}
    return tuple(
        _score(words.encode(choice), pick.get(choice, LEFT), unconditional=request.unconditional)
        for choice in request.choices
    )


def _score(
    ids: list[int], logprobs: float | Sequence[float], *, unconditional: bool
) -> ChoiceScore:
    if not isinstance(logprobs, Sequence):
        logprobs = [logprobs] * len(ids)
    elif len(logprobs) != len(ids):
        ids = list(range(1, len(logprobs) + 1))  # the script says how many tokens there are
    alone = (None, *[ALONE] * (len(ids) - 1)) if unconditional else None
    return ChoiceScore(tuple(ids), tuple(logprobs), alone)
