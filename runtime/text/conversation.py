"""A conversation as a prompt: the model's own template renders it, and contents stay contents.

The template renders the messages twice, as they are and with every text in them quoted (`quoted`).
Where both read the same, the second says which characters are the template's own, and only those
are parsed for special tokens.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Protocol

from branchline.errors import InvalidRequest
from branchline.runtime.text.quoted import Alphabet

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from branchline.protocol import Conversation, Prompt

# A template writes roles beside its own text, so that a role could become a special token.
ROLES = ("system", "developer", "user", "assistant", "tool", "function", "ipython")
_PLAIN_FIELDS = ("role",)


class RenderAll(Protocol):
    """The template of a model, bound to one moment."""

    def __call__(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
    ) -> str:
        """The text; InvalidRequest where the template refuses it."""


def as_prompt(conversation: Conversation, render: RenderAll, names: frozenset[str]) -> Prompt:
    """The prompt that the template makes of a conversation.

    Args:
        conversation: plain data as it came from a client.
        render: the template.
        names: what the template asks for by name: variables, attributes and keys.

    Raises:
        InvalidRequest: a message is not of the form that chat APIs have, the template refuses it or
            takes no tools, or it does with contents what cannot be followed.
    """
    _check_tools(conversation, names)
    messages = [_message(message, index) for index, message in enumerate(conversation.messages)]
    if not messages:
        raise InvalidRequest("messages is empty: a conversation has at least one")
    if conversation.goes_on and messages[-1]["role"] != "assistant":
        raise InvalidRequest(
            f"goes_on: the last message is the {messages[-1]['role']}'s; only an answer goes on"
        )
    goes_on = conversation.goes_on and bool(str(messages[-1]["content"] or "").strip())
    if conversation.goes_on and not goes_on:
        del messages[-1]  # an answer without a beginning is what the template asks for anyway
    tools = _as_lists(conversation.tools) or None
    plain = render(messages, tools=tools, add_generation_prompt=not goes_on)
    alphabet = Alphabet()
    quoted = [_quoted(message, alphabet) for message in messages]
    marked = render(quoted, tools=alphabet.quote(tools), add_generation_prompt=not goes_on)
    if alphabet.read(marked) != plain:
        raise InvalidRequest(
            "the chat template changes what messages say, or decides by it, in a way that cannot "
            "be followed: send a prompt instead of messages"
        )
    return alphabet.pieces(_upto(marked, quoted[-1]["content"]) if goes_on else marked)


def chars_in(value: Any) -> int:
    """The number of characters in all texts of some plain data."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(chars_in(key) + chars_in(item) for key, item in value.items())
    return sum(map(chars_in, value)) if isinstance(value, list | tuple) else 0


def _as_lists(value: Any) -> Any:
    """Plain data with lists for the tuples that a wire makes of them: templates may print them."""
    if isinstance(value, dict):
        return {key: _as_lists(item) for key, item in value.items()}
    return [_as_lists(item) for item in value] if isinstance(value, list | tuple) else value


def _message(message: Mapping[str, Any], index: int) -> dict[str, Any]:
    """A message as templates expect it: content a text, arguments of calls as data."""
    where = f"messages[{index}]"
    role = message.get("role")
    if role not in ROLES:
        raise InvalidRequest(f"{where}.role={role!r}: must be one of {', '.join(ROLES)}")
    calls = message.get("tool_calls")
    content = _content(message.get("content"), where)
    if content is None and not calls:
        raise InvalidRequest(f"{where}.content is missing")
    made: dict[str, Any] = {**_as_lists(message), "content": content}
    if calls:
        made["tool_calls"] = _calls(calls, where)
    else:
        made.pop("tool_calls", None)
    return made


def _content(content: Any, where: str) -> str | None:
    """The text of a content; parts are joined by line ends."""
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        raise InvalidRequest(f"{where}.content: must be a text or a list of text parts")
    texts = []
    for at, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else type(part).__name__
        text = part.get("text") if isinstance(part, dict) else None
        if kind != "text" or not isinstance(text, str):
            raise InvalidRequest(f"{where}.content[{at}] is a part of type {kind}: only text is")
        texts.append(text)
    return "\n".join(texts)


def _calls(calls: Any, where: str) -> list[dict[str, Any]]:
    """Tool calls with their arguments as data, where chat APIs have them as a text of JSON."""
    made = []
    for at, call in enumerate(calls if isinstance(calls, list | tuple) else [None]):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise InvalidRequest(f"{where}.tool_calls[{at}]: must be a function's name, arguments")
        arguments = function.get("arguments", {})
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments or "{}")
            except ValueError:
                raise InvalidRequest(
                    f"{where}.tool_calls[{at}].function.arguments is not JSON: {arguments[:80]!r}"
                ) from None
        made.append({**call, "function": {**function, "arguments": arguments}})
    return made


def _check_tools(conversation: Conversation, names: frozenset[str]) -> None:
    """What the template does not ask for would be left out without a word."""
    if conversation.tools and "tools" not in names:
        raise InvalidRequest("tools: the model's chat template takes none")
    if "tool_calls" not in names and any(m.get("tool_calls") for m in conversation.messages):
        raise InvalidRequest("tool_calls: the model's chat template takes none")


def _quoted(message: Mapping[str, Any], alphabet: Alphabet) -> dict[str, Any]:
    return {
        key: value if key in _PLAIN_FIELDS else alphabet.quote(value)
        for key, value in message.items()
    }


def _upto(marked: str, content: str) -> str:
    """The text up to the end of its last content, which goes on there.

    A template may strip a content. White space at its end is kept where the template keeps it.
    """
    marked, whole = "".join((marked,)), "".join((content,))
    start = marked.rfind(whole.strip())
    if start < 0:
        raise InvalidRequest("goes_on: the chat template does not show all of the last message")
    left = whole.lstrip()
    shown = left if marked.startswith(left, start) else whole.strip()
    return marked[: start + len(shown)]
