"""Turns of a conversation: the text around them, and the messages they become."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from branchline.errors import InvalidRequest
from branchline.protocol import ChatTemplate

if TYPE_CHECKING:
    from branchline.snapshot import Snapshot

# For models without a template of their own.
PLAIN_TEMPLATE = ChatTemplate(
    prefix={"system": "SYSTEM:", "user": "USER:", "assistant": "ASSISTANT:"},
    suffix={"system": "\n", "user": "\n", "assistant": "\n"},
)


def begin_turn(snapshot: Snapshot, role: str, template: ChatTemplate) -> Snapshot:
    """Open a turn, after what the template puts before a conversation without a system turn.

    Raises:
        InvalidRequest: a turn is open, or the template knows no such role.
    """
    if snapshot.role is not None:
        raise InvalidRequest(
            f"a turn of {role!r} cannot begin inside that of {snapshot.role!r}; end that one first"
        )
    if role not in template.prefix:
        known = ", ".join(template.prefix) or "none that can be told apart; write its turns as text"
        raise InvalidRequest(f"the model's chat template has no turn of {role!r}; it has {known}")
    if not snapshot.messages and role != "system" and template.default_system is not None:
        snapshot = _default_system_turn(snapshot, template, template.default_system)
    snapshot = snapshot.add(("template", template.prefix[role]))
    return replace(snapshot, role=role, role_start=len(snapshot.text))


def end_turn(snapshot: Snapshot, role: str, template: ChatTemplate) -> Snapshot:
    """Close the open turn and keep its message, without the white space it starts with.

    Raises:
        InvalidRequest: the open turn is of another role, or there is none.
    """
    if snapshot.role != role:
        opened = "no turn is open" if snapshot.role is None else f"that of {snapshot.role!r} is"
        raise InvalidRequest(f"a turn of {role!r} cannot end here: {opened}")
    message = (role, snapshot.text[snapshot.role_start :].lstrip())
    closed = snapshot.add(("template", template.suffix[role]))
    return replace(closed, role=None, messages=(*snapshot.messages, message))


def _default_system_turn(snapshot: Snapshot, template: ChatTemplate, start: str) -> Snapshot:
    """With what a conversation starts with; a message too, where that is a whole system turn."""
    snapshot = snapshot.add(("template", start))
    prefix, suffix = (part.get("system", "") for part in (template.prefix, template.suffix))
    if not (prefix and start.startswith(prefix) and start.endswith(suffix)):
        return snapshot
    content = start.removeprefix(prefix).removesuffix(suffix).lstrip()
    return replace(snapshot, messages=(("system", content),))
