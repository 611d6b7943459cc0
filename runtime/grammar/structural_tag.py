"""Structural tags: free text in which certain beginnings open a structure that must be kept.

``{"structures": [{"begin": "<add>", "schema": {...}, "end": "</add>"}], "triggers": ["<add"]}``:
text runs freely until a trigger has been written; then one of the structures that begin with it
follows, to its end, and then free text again. The text may end outside of a structure only.
"""

from __future__ import annotations

import json
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from branchline.errors import InvalidRequest
from branchline.runtime.grammar.schema import parsed, prepared


class _Structure(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    begin: Annotated[str, Field(min_length=1)]
    schema_: Annotated[dict[str, object] | bool, Field(alias="schema")]
    end: str


class _Tags(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    type: str = "structural_tag"
    structures: Annotated[list[_Structure], Field(min_length=1)]
    triggers: Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1)]


def lark_of_structural_tag(source: str) -> str:
    """The same as a Lark grammar.

    Raises:
        InvalidRequest: it is not of the form above, a structure begins with no trigger, or a schema
            cannot be enforced.
    """
    try:
        tags = _Tags.model_validate(parsed(source))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"])) or "it"
        raise InvalidRequest(f"{place}: {first['msg']}") from None
    by_trigger: dict[str, list[_Structure]] = {}
    for one in tags.structures:
        by_trigger.setdefault(_trigger(one, tags.triggers), []).append(one)
    names = [f"tag_{i}" for i in range(len(by_trigger))]
    # A lazy rule ends as soon as its trigger is there, so no free text runs over one.
    lines = [
        "%llguidance {}",
        f"start: ({' | '.join(names)})* free",
        "free: TEXT",
        r"TEXT: /(?s:.*)/",
    ]
    for name, (trigger, structures) in zip(names, by_trigger.items(), strict=True):
        bodies = " | ".join(_body(one, trigger) for one in structures)
        lines += [f"{name}: {name}_trigger ({bodies})"]
        lines += [f"{name}_trigger[lazy]: TEXT {json.dumps(trigger)}"]
    return "\n".join(lines)


def _trigger(structure: _Structure, triggers: list[str]) -> str:
    """The trigger that opens a structure."""
    found = [trigger for trigger in triggers if structure.begin.startswith(trigger)]
    if len(found) != 1:
        raise InvalidRequest(
            f"{structure.begin!r} begins with {len(found)} of the triggers, and must with one"
        )
    return found[0]


def _body(structure: _Structure, trigger: str) -> str:
    """What follows the trigger."""
    rest = structure.begin.removeprefix(trigger)
    schema = f"%json {json.dumps(prepared(structure.schema_))}"
    parts = [json.dumps(rest) if rest else "", schema]
    return " ".join([*parts, json.dumps(structure.end) if structure.end else ""]).strip()
