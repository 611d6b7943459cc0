"""Writes the answers of a chat: what is said, what is called, and how likely it was."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from branchline.gateway.chunks import Head, ended
from branchline.gateway.logprobs import chat_logprobs, reported
from branchline.gateway.tool_calls import Call, CallReader
from branchline.gateway.usage import Tally

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from branchline.protocol import Finish, Update
    from branchline.sampling_params import SamplingParams

ROLE = '"delta": {"role": "assistant", "content": ""}'  # what every choice begins with
NOTHING = '"delta": {}'


class ChatWriter:
    """The answer of one chat.

    Args:
        model: the name that it was asked by.
        params: how it is generated.
        tools: the functions that may be called.
        usage: whether a stream ends with what it cost.
    """

    def __init__(
        self, model: str, params: SamplingParams, tools: Collection[str], *, usage: bool
    ) -> None:
        self._head = Head("chatcmpl", "chat.completion", model)
        self._chunks = self._head.chunks("chat.completion.chunk", usage=usage)
        self._tally = Tally(params.n)
        self._wants_scores = params.wants_logprobs
        self._readers = {index: CallReader(tools) for index in range(params.n if tools else 0)}
        self._begun: set[int] = set()

    def events(self, choice: int, update: Update) -> str:
        """The events of an update that has something to tell."""
        parts = self._parts(choice, update)
        scores = self._scores(update)
        self._tally.add(choice, update.usage)
        written = []
        if choice not in self._begun:
            self._begun.add(choice)
            written.append(self._chunks.choice(choice, ROLE))
        for part in parts:
            written.append(self._chunks.choice(choice, _delta(part), scores))
            scores = None  # told once
        if scores is not None and scores["content"]:
            written.append(self._chunks.choice(choice, NOTHING, scores))
        if update.finish is not None:
            reason = self._reason(choice, update.finish)
            written.append(self._chunks.last(choice, NOTHING, reason, update.finish))
        return "".join(written)

    def end(self) -> str:
        """What comes after the last choice."""
        return self._chunks.end(self._tally.as_json())

    def whole(self, choices: Sequence[Update]) -> dict[str, Any]:
        """The answer at once."""
        made = []
        for index, update in enumerate(choices):
            assert update.finish is not None, "comes whole"
            parts = self._parts(index, update)
            self._tally.add(index, update.usage)
            made.append(
                {
                    "index": index,
                    "message": _message(parts),
                    "logprobs": self._scores(update),
                    "finish_reason": self._reason(index, update.finish),
                    **ended(update.finish),
                }
            )
        return self._head.whole(made, self._tally.as_json())

    def _parts(self, choice: int, update: Update) -> list[str | Call]:
        """What is new: texts and calls, in order."""
        reader = self._readers.get(choice)
        if reader is None:
            return [update.text] if update.text else []
        parts = reader.feed(update.text)
        if update.finish is not None:
            parts += reader.finish()
        return parts

    def _scores(self, update: Update) -> dict[str, Any] | None:
        return chat_logprobs(reported(update)) if self._wants_scores else None

    def _reason(self, choice: int, finish: Finish) -> str:
        reader = self._readers.get(choice)
        called = finish.reason == "stop" and reader is not None and reader.calls
        return "tool_calls" if called else finish.reason


def _message(parts: list[str | Call]) -> dict[str, Any]:
    """The message of a whole answer; one that only calls says nothing."""
    calls = [part.as_json() for part in parts if isinstance(part, Call)]
    said = "".join(part for part in parts if isinstance(part, str))
    message: dict[str, Any] = {
        "role": "assistant",
        "content": None if calls and not said else said,
        "refusal": None,
    }
    return {**message, "tool_calls": calls} if calls else message


def _delta(part: str | Call) -> str:
    """What is new in a choice: a text, or a call."""
    if isinstance(part, str):
        return f'"delta": {{"content": {json.dumps(part)}}}'
    return f'"delta": {{"tool_calls": [{json.dumps({"index": part.index, **part.as_json()})}]}}'
