"""Puts a generation's updates together, and says what is known about it in SGLang's words."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from branchline.errors import RuntimeFailed
from branchline.reasoning import split
from branchline.typed import parse

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from branchline.nodes import Gen
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
            if self.usage.forced_tokens:
                meta["forced_tokens"] = self.usage.forced_tokens
        if self.finish is not None:
            meta["finish_reason"] = _finish_reason(self.finish, len(self.ids))
            meta["seed"] = self.finish.seed
            if self.finish.note:
                meta["note"] = self.finish.note
        if self.prompt_logprobs:
            meta["input_token_logprobs"] = [
                _triple(p.logprob, p.token) for p in self.prompt_logprobs
            ]
            meta["input_top_logprobs"] = [_triples(p.top) for p in self.prompt_logprobs]
        if self.logprobs:
            meta["output_token_logprobs"] = [
                _triple(p.logprob, p.token, p.text) for p in self.logprobs
            ]
            meta["output_top_logprobs"] = [_triples(p.top, p.top_texts) for p in self.logprobs]
        if self.next_top:  # nothing was generated: the position that would have come
            meta["output_top_logprobs"] = [_triples(self.next_top)]
        return meta


def _finish_reason(finish: Finish, length: int) -> dict[str, Any]:
    if finish.reason == "length":
        return {"type": "length", "length": length}
    return {"type": "stop", "matched": finish.matched}


def _triple(logprob: float | None, token: int, text: str | None = None) -> list[Any]:
    return [logprob, token, text]


def _triples(top: Iterable[tuple[float, int]], texts: Sequence[str] = ()) -> list[list[Any]]:
    known = itertools.chain(texts, itertools.repeat(None))
    return [_triple(*pair, text) for pair, text in zip(top, known, strict=False)]


class Written:
    """What the choices of a gen are to the program: of one choice itself, of several a list."""

    def __init__(self, choices: Sequence[Choice], node: Gen) -> None:
        self._choices = choices
        self._node = node
        marks = node.reasoning
        self._parts = [("", c.text) if marks is None else split(c.text, marks) for c in choices]

    def added(self) -> tuple[Prompt, str]:
        """What the first choice adds to the state, as it is sent and as it reads.

        Raises:
            RuntimeFailed: one of them never finished.
        """
        pieces = [choice.pieces() for choice in self._choices]
        marks = self._node.reasoning
        if marks is None or marks.keep:
            return pieces[0], self._choices[0].text
        answer = self._parts[0][1]
        return (("program", answer),), answer

    def value(self) -> Any:
        """The answers, as values of the gen's type, or the calls in them.

        Raises:
            InvalidValue: one of them is none.
        """
        answers = [answer for _, answer in self._parts]
        if self._node.tools is not None:
            calls = [self._node.tools.parse(answer) for answer in answers]
            return calls if len(calls) > 1 else calls[0]
        if self._node.type is not None:
            return _one_or_list([parse(answer, self._node.type) for answer in answers])
        return _one_or_list(answers)

    def text(self) -> Any:
        """The answers."""
        return _one_or_list([answer for _, answer in self._parts])

    def reasoning(self) -> Any:
        """What was thought before the answers."""
        return _one_or_list([reasoning for reasoning, _ in self._parts])

    def meta(self) -> Any:
        """What is known about them."""
        return _one_or_list([choice.meta() for choice in self._choices])


def _one_or_list(items: list[Any]) -> Any:
    return items[0] if len(items) == 1 else items
