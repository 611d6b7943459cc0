"""Cuts a model's chat template into what stands before and after the content of each role.

The template is rendered with marks as contents and taken apart at the marks. Whether the parts
really make up the template is then tried on conversations with other contents.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from branchline.errors import InvalidRequest
from branchline.protocol import ChatTemplate
from branchline.runtime.text.jinja_template import NoChatTemplate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Render(Protocol):
    """`Tokenizer.render`."""

    def __call__(
        self, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool
    ) -> str:
        """The text of a conversation; InvalidRequest where the template refuses it."""


_MARKS = ("branchline-mark-a", "branchline-mark-b", "branchline-mark-c")
_TRIALS = (
    ("user",),
    ("user", "assistant", "user"),
    ("user", "assistant", "user", "assistant", "user"),
)
_CONTENTS = ("Hi.", "Two\nlines, 12 words", "ünïcode 世界", "{'a': [1]}", "x", "The end?")


class _NotCuttable(Exception):
    """The template is not prefix, content and suffix for each role."""


def cut_chat_template(render: Render) -> ChatTemplate | None:
    """The template as prefixes and suffixes; None where there is none.

    A turn is `prefix + content + suffix`. `default_system` is what a conversation without a system
    turn begins with. A template that refuses the system role, or puts it inside another turn, has
    no `system` among its prefixes; one that cannot be cut has no roles at all: no other text is put
    in its place. One that strips contents is cut all the same: a state keeps what was said. So is
    one that drops parts of earlier answers.
    """
    try:
        return _cut(render)
    except NoChatTemplate:
        return None
    except (_NotCuttable, InvalidRequest):
        return ChatTemplate(prefix={}, suffix={})


def _cut(render: Render) -> ChatTemplate:
    start, end_user = _parts(render, ("user",))
    _, opened = _parts(render, ("user",), generation_prompt=True)
    _, _, end_assistant = _parts(render, ("user", "assistant"))
    _, to_assistant, to_user, _ = _parts(render, ("user", "assistant", "user"))
    user = _without_start(to_user, end_assistant)
    system = _system(render, user)
    cut = ChatTemplate(
        prefix={"user": user, "assistant": _without_start(to_assistant, end_user)},
        suffix={"user": end_user, "assistant": end_assistant},
        default_system=_without_end(start, user) or None,
    )
    if system is not None:
        cut.prefix["system"], cut.suffix["system"] = system
    for roles in _TRIALS:
        _try_out(render, cut, roles)
        if system is not None:
            _try_out(render, cut, ("system", *roles))
    # What a model continues may say more than what an earlier answer begins with, e.g. "<think>".
    opening = _without_start(opened, end_user)
    if not opening.startswith(cut.prefix["assistant"]):
        raise _NotCuttable
    cut.prefix["assistant"] = opening
    return cut


def _system(render: Render, user: str) -> tuple[str, str] | None:
    """The prefix and suffix of a system turn; None where the template has no such turn."""
    try:
        prefix, to_user, _ = _parts(render, ("system", "user"))
        return prefix, _without_end(to_user, user)
    except (InvalidRequest, _NotCuttable):
        return None


def _parts(render: Render, roles: tuple[str, ...], *, generation_prompt: bool = False) -> list[str]:
    """What a conversation of these roles has around its contents: one part more than roles."""
    rest = render(_messages(roles, _MARKS), add_generation_prompt=generation_prompt)
    parts = []
    for mark in _MARKS[: len(roles)]:
        part, found, rest = rest.partition(mark)
        if not found or mark in rest:
            raise _NotCuttable
        parts.append(part)
    return [*parts, rest]


def _try_out(render: Render, cut: ChatTemplate, roles: tuple[str, ...]) -> None:
    messages = _messages(roles, _CONTENTS)
    joined = "" if roles[0] == "system" else cut.default_system or ""
    for message in messages:
        role = message["role"]
        joined += cut.prefix[role] + message["content"] + cut.suffix[role]
    if render(messages, add_generation_prompt=False) != joined:
        raise _NotCuttable


def _messages(roles: Sequence[str], contents: Sequence[str]) -> list[dict[str, str]]:
    return [
        {"role": role, "content": content} for role, content in zip(roles, contents, strict=False)
    ]


def _without_start(text: str, start: str) -> str:
    if not text.startswith(start):
        raise _NotCuttable
    return text.removeprefix(start)


def _without_end(text: str, end: str) -> str:
    if not text.endswith(end):
        raise _NotCuttable
    return text.removesuffix(end)
