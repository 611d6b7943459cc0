"""A choice without likelihoods: the model writes it, and may write nothing but a choice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from branchline.errors import InvalidRequest
from branchline.openai_answer import Answers
from branchline.protocol import ChoiceScore, Generate, Scored, Usage
from branchline.sampling_params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from branchline.protocol import Score

ALLOWED = 100  # added to the logits of the tokens that go on with a choice: the API's most


class StepwiseSelect:
    """Token after token, until the text can become one choice only.

    At each step the next token of every choice that is still possible is allowed. A choice counts
    the steps that it has been through; the one with the most is taken, of equals the first.
    """

    def __init__(self, request: Score, encode: Callable[[str], Sequence[int]]) -> None:
        self.written = ""
        self._request = request
        self._ids = [tuple(encode(choice)) for choice in request.choices]
        for choice, ids in zip(request.choices, self._ids, strict=True):
            if not ids:
                raise InvalidRequest(f"the choice {choice!r} has no tokens")
        self._matches = [0] * len(self._ids)
        self._possible = list(range(len(self._ids)))
        self._usage = Usage(0, 0, 0)

    def bias(self) -> dict[str, int]:
        """The tokens of the next step, as a `logit_bias`; empty when it is decided."""
        step = max(self._matches)
        self._possible = [i for i in self._possible if len(self._ids[i]) > step]
        if len(self._possible) < 2 and (step or len(self._ids) == 1):
            return {}
        return {str(self._ids[i][step]): ALLOWED for i in self._possible}

    def take(self, answer: Mapping[str, Any], *, chat: bool) -> None:
        """Go on with what a step wrote."""
        asked = Generate(self._request.rid, self._request.prompt, SamplingParams(max_tokens=1))
        (update,) = Answers(asked, chat=chat).whole(answer)
        assert update.usage is not None, "comes with the finish"
        self._usage = Usage(
            self._usage.prompt_tokens + update.usage.prompt_tokens,
            self._usage.cached_tokens + update.usage.cached_tokens,
            self._usage.completion_tokens + update.usage.completion_tokens,
        )
        self.written += update.text
        choices = self._request.choices
        self._possible = [
            i for i in self._possible if update.text and choices[i].startswith(self.written)
        ]
        for i in self._possible:
            self._matches[i] += 1

    def scored(self) -> Scored:
        """The scores, as log-probabilities would be: 0 for the most matches."""
        most = max(self._matches)
        scores = tuple(
            ChoiceScore(ids[:1], (float(count - most),), (0.0,))
            for ids, count in zip(self._ids, self._matches, strict=True)
        )
        return Scored(self._request.rid, scores, self._usage)
