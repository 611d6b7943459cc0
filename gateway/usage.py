"""What an answer cost, in OpenAI's words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from branchline.protocol import Usage


class Tally:
    """Adds up what the choices cost. A prompt counts once, however many choices it has.

    Args:
        n: choices of one prompt.
    """

    def __init__(self, n: int) -> None:
        self._n = n
        self._prompts: dict[int, Usage] = {}  # of the choice that found least in the cache
        self._completion = 0
        self._forced = 0

    def add(self, choice: int, usage: Usage | None) -> None:
        """Take what a choice cost, if it has finished."""
        if usage is None:
            return
        prompt = choice // self._n
        least = self._prompts.get(prompt, usage)
        self._prompts[prompt] = min(least, usage, key=lambda one: one.cached_tokens)
        self._completion += usage.completion_tokens
        self._forced += usage.forced_tokens

    def as_json(self) -> dict[str, Any]:
        """The sum."""
        costs = self._prompts.values()
        prompt = sum(cost.prompt_tokens for cost in costs)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": self._completion,
            "total_tokens": prompt + self._completion,
            "prompt_tokens_details": {
                "cached_tokens": sum(cost.cached_tokens for cost in costs),
                "recalled_tokens": sum(cost.recalled_tokens for cost in costs),
            },
            "completion_tokens_details": {"forced_tokens": self._forced},
        }
