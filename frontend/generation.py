"""Puts a generation's updates together, and says what is known about it in SGLang's words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from branchline.errors import RuntimeFailed

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from branchline.protocol import Finish, Prompt, TokenLogprob, Update, Usage


class Choice:
    """One of the texts of a generation, as far as its updates say."""

    def __init__(self) -> None:
        self.rid = ""
        self.text = ""
        self.ids: list[int] = []
        self.logprobs: list[TokenLogprob] = []
        self.prompt_logprobs: list[TokenLogprob] = []
        self.next_top: tuple[tuple[float, int], ...] = ()
        self.finish: Finish | None = None
        self.usage: Usage | None = None

    def take(self, update: Update) -> None:
        """Add what is new."""
        self.rid = update.rid
        self.text += update.text
        self.ids += update.ids
        self.logprobs += update.logprobs
        self.prompt_logprobs += update.prompt_logprobs
        self.next_top = update.next_top or self.next_top
        self.finish = update.finish or self.finish
        self.usage = update.usage or self.usage

    def pieces(self) -> Prompt:
        """What it adds to a state.

        Raises:
            RuntimeFailed: it never finished.
        """
        if self.finish is None:
            raise RuntimeFailed(f"the runtime ended request {self.rid!r} without finishing it")
        kept = tuple(self.ids[: self.finish.kept])
        return (("tokens", kept), ("program", self.finish.tail))

    def meta(self) -> dict[str, Any]:
        """What is known about it; of one that goes on, or without log-probabilities, fewer keys."""
        meta: dict[str, Any] = {"id": self.rid}
        if self.usage is not None:
            meta["prompt_tokens"] = self.usage.prompt_tokens
            meta["completion_tokens"] = self.usage.completion_tokens
            meta["cached_tokens"] = self.usage.cached_tokens
        if self.finish is not None:
            meta["finish_reason"] = _finish_reason(self.finish, len(self.ids))
            meta["seed"] = self.finish.seed
        if self.prompt_logprobs:
            meta["input_token_logprobs"] = [
                _triple(p.logprob, p.token) for p in self.prompt_logprobs
            ]
            meta["input_top_logprobs"] = [_triples(p.top) for p in self.prompt_logprobs]
        if self.logprobs:
            meta["output_token_logprobs"] = [_triple(p.logprob, p.token) for p in self.logprobs]
            meta["output_top_logprobs"] = [_triples(p.top) for p in self.logprobs]
        if self.next_top:  # nothing was generated: the position that would have come
            meta["output_top_logprobs"] = [_triples(self.next_top)]
        return meta


def _finish_reason(finish: Finish, length: int) -> dict[str, Any]:
    if finish.reason == "length":
        return {"type": "length", "length": length}
    return {"type": "stop", "matched": finish.matched}


def _triple(logprob: float | None, token: int) -> list[Any]:
    return [logprob, token, None]


def _triples(top: Iterable[tuple[float, int]]) -> list[list[Any]]:
    return [_triple(logprob, token) for logprob, token in top]


def values(choices: Sequence[Choice]) -> tuple[Any, Any]:
    """A variable's value and meta: of the one choice itself, of several a list."""
    if len(choices) == 1:
        return choices[0].text, choices[0].meta()
    return [choice.text for choice in choices], [choice.meta() for choice in choices]
