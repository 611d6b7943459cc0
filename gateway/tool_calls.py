"""Calls in a model's text, in the form that `call_grammar` holds it to: written and read again."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from branchline.call_grammar import BEGIN, END, manual

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from branchline.gateway.messages import Tool


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a function."""

    name: str
    arguments: str  # JSON
    index: int  # among the calls of its choice
    id: str = field(default_factory=lambda: f"call_{uuid.uuid4().hex[:24]}")

    def as_json(self) -> dict[str, Any]:
        """The call as chats have it."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}


def written(name: str, arguments: Any) -> str:
    """A call as a model writes it."""
    call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"{BEGIN}\n{call}\n{END}"


class CallReader:
    """Parts the text of one choice into what it says and what it calls, as the text comes.

    Args:
        names: the functions that may be called; anything else between the tags is text.
    """

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._rest = ""  # not said yet: it may be, or become, a call
        self._just_called = False  # nothing was said since
        self.calls = 0

    def feed(self, text: str) -> list[str | Call]:
        """What is certain with a further text, in order."""
        self._rest += text
        parts: list[str | Call] = []
        while self._rest:
            begin = self._rest.find(BEGIN)
            if begin < 0:
                said = _certain(self._rest)
                _say(parts, said)
                self._rest = self._rest[len(said) :]
                break
            _say(parts, self._rest[:begin].rstrip())
            self._rest = self._rest[begin:]
            read = self._read_calls()
            if read is None:
                break
            parts += read
        if parts:
            self._just_called = isinstance(parts[-1], Call)
        return parts

    def finish(self) -> list[str | Call]:
        """What is left at the end: a call that was cut off is text."""
        rest, self._rest = self._rest, ""
        return [rest] if rest.strip() or (rest and not self._just_called) else []

    def _read_calls(self) -> list[str | Call] | None:
        """The calls of the tags that the rest begins with; None: they are still open.

        An end inside of a text of the JSON is not the end: up to there it is no JSON.
        """
        end = self._rest.find(END)
        while end >= 0:
            calls = _parse(self._rest[len(BEGIN) : end], self._names, self.calls)
            if calls is not None:
                self._rest = self._rest[end + len(END) :]
                self.calls += len(calls)
                return list(calls)
            end = self._rest.find(END, end + 1)
        return None


def _certain(text: str) -> str:
    """A text up to where a call may begin; white space before one is not said."""
    longest = min(len(text), len(BEGIN) - 1)
    held = next((size for size in range(longest, 0, -1) if text.endswith(BEGIN[:size])), 0)
    return text[: len(text) - held].rstrip()


def _say(parts: list[str | Call], text: str) -> None:
    if text:
        parts.append(text)


def _parse(text: str, names: Collection[str], first: int) -> list[Call] | None:
    """The calls in JSON, one or a list of them, numbered from `first`; None where it is no call."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    calls: list[Call] = []
    for one in value if isinstance(value, list) else [value]:
        name = one.get("name") if isinstance(one, dict) else None
        if not isinstance(name, str) or name not in names:
            return None
        arguments = json.dumps(one.get("arguments", {}), ensure_ascii=False)
        calls.append(Call(name, arguments, first + len(calls)))
    return calls


def described(messages: Sequence[dict[str, Any]], tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """A conversation with tools for a template that knows of none: they become ordinary text."""
    told: list[dict[str, Any]] = []
    for message in messages:
        one = _as_text(message)
        if told and message["role"] == "tool" and told[-1]["role"] == "user":
            told[-1]["content"] += "\n" + one["content"]  # results follow each other in one turn
        else:
            told.append(one)
    if not tools:
        return told
    text = manual(tool.as_data()["function"] for tool in tools)
    if told and told[0]["role"] in {"system", "developer"}:
        first = told[0]
        return [{**first, "content": f"{first['content'] or ''}\n\n{text}"}, *told[1:]]
    return [{"role": "system", "content": text}, *told]


def _as_text(message: dict[str, Any]) -> dict[str, Any]:
    """A message without fields that only templates with tools know."""
    if message["role"] == "tool":
        text = f"<tool_response>\n{message['content'] or ''}\n</tool_response>"
        return {"role": "user", "content": text}
    calls = [call["function"] for call in message.get("tool_calls", ())]
    if not calls:
        return message
    texts = [written(call["name"], _loaded(call["arguments"])) for call in calls]
    said = message["content"]
    return {"role": message["role"], "content": "\n".join([said, *texts] if said else texts)}


def _loaded(arguments: str) -> Any:
    """Arguments as data; what a model wrote need not be JSON."""
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
