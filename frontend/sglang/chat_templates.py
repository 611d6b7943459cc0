"""SGLang's named chat templates: how a turn of each role begins and ends.

A model that brings its own template is served with that one; a name takes its place only where a
program asks for it, `RuntimeEndpoint(…, chat_template_name=…)`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

from branchline import protocol
from branchline.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Match = Callable[[str], "ChatTemplate | None"]


class ChatTemplateStyle(Enum):
    """How turns are put together."""

    PLAIN = auto()  # each by itself
    LLAMA2 = auto()  # a system turn lies inside the first user turn


@dataclass(frozen=True)
class ChatTemplate:
    """A template by its parts; SGLang's fields."""

    name: str
    default_system_prompt: str | None
    role_prefix_and_suffix: Mapping[str, tuple[str, str]]
    stop_str: Sequence[str] = ()
    image_token: str = "<image>"
    audio_token: str = "<audio>"
    style: ChatTemplateStyle = ChatTemplateStyle.PLAIN

    @classmethod
    def of_model(cls, name: str, card: protocol.ModelCard) -> ChatTemplate:
        """A model's own template, as far as it can be cut into turns."""
        own = card.chat_template
        assert own is not None, "the caller has looked"
        parts = {role: (prefix, own.suffix[role]) for role, prefix in own.prefix.items()}
        before, after = parts.get("system", ("", ""))
        system = own.default_system
        if system is not None and system.startswith(before) and system.endswith(after):
            system = system.removeprefix(before).removesuffix(after)
        return cls(name, system, parts, own.stop)

    def get_prefix_and_suffix(
        self, role: str, hist_messages: Sequence[Mapping[str, str]]
    ) -> tuple[str, str]:
        """What stands around a turn that comes after others."""
        prefix, suffix = self.role_prefix_and_suffix.get(role, ("", ""))
        if self.style is ChatTemplateStyle.LLAMA2:
            if role == "system" and not hist_messages:
                user_prefix, _ = self.role_prefix_and_suffix.get("user", ("", ""))
                return user_prefix + prefix, suffix
            if role == "user" and [turn["role"] for turn in hist_messages] == ["system"]:
                return "", suffix  # the system turn has opened this one
        return prefix, suffix

    def get_prompt(self, messages: Sequence[Mapping[str, str]]) -> str:
        """A whole conversation as text."""
        text = ""
        history: list[Mapping[str, str]] = []
        for message in messages:
            prefix, suffix = self.get_prefix_and_suffix(message["role"], history)
            text += f"{prefix}{message['content']}{suffix}"
            history.append(message)
        return text

    def for_runtime(self) -> protocol.ChatTemplate:
        """The same as the language has it.

        Raises:
            InvalidRequest: a turn's prefix depends on the turns before it.
        """
        if self.style is not ChatTemplateStyle.PLAIN:
            raise InvalidRequest(
                f"chat_template_name={self.name!r}: its system turn lies inside the user's, which "
                "a named template cannot say; the model's own template can, so leave the name out"
            )
        parts = self.role_prefix_and_suffix
        system = None
        if self.default_system_prompt is not None:
            system = self.get_prompt([{"role": "system", "content": self.default_system_prompt}])
        return protocol.ChatTemplate(
            prefix={role: prefix for role, (prefix, _) in parts.items()},
            suffix={role: suffix for role, (_, suffix) in parts.items()},
            default_system=system,
            stop=tuple(self.stop_str),
        )


_templates: dict[str, ChatTemplate] = {}
_matches: list[Match] = []


def register_chat_template(template: ChatTemplate) -> None:
    """Let a template be known by its name."""
    _templates[template.name] = template


def register_chat_template_matching_function(func: Match) -> Match:
    """Ask a function for the template of a model's path; a decorator."""
    _matches.append(func)
    return func


def get_chat_template(name: str) -> ChatTemplate:
    """The template of a name.

    Raises:
        InvalidRequest: there is none.
    """
    if name not in _templates:
        known = ", ".join(sorted(_templates))
        raise InvalidRequest(f"chat template {name!r}: there is no such; there are {known}")
    return _templates[name]


def get_chat_template_by_model_path(model_path: str) -> ChatTemplate:
    """The first template that a matching function gives for a path, else `default`.

    A function gives the template, or its name.
    """
    for match in _matches:
        found = match(model_path)
        if found is not None:
            return get_chat_template(found) if isinstance(found, str) else found
    return get_chat_template("default")
