"""llguidance's errors as one line."""

from __future__ import annotations

import re

_LONGEST = 300  # characters of a reason

# Where its account of the parser's state begins: of use to its authors only.
_STATE = re.compile(r"\n?<(?:state|non-verbose|backtrace)")

# What it says that a user could not make use of: its stop reasons, its own options.
_REWORDED = {
    "NoExtensionBias": "no text matches it",
    "NoExtension": "no text matches it",
    "LexerTooComplex": "its regular expressions are too complex",
    "ParserTooComplex": "too many alternatives are open at one place",
    "oneOf constraints are not supported": (
        "that exactly one of its branches matches cannot be enforced, because they may overlap; "
        "write anyOf, or give each branch a required property with a const of its own"
    ),
    "panic:": "llguidance cannot read it",
}
_REMOTE = re.compile(r"Resource '(.*?)' is not present in a registry")


def reason(error: str) -> str:
    """The first thing that an error of llguidance's says, without the state that it appends."""
    said = [line.strip() for line in _STATE.split(error)[0].splitlines()]
    said = [line for line in said if line] or ["llguidance gives no reason"]
    if "regex parse error" in said[0]:
        # The pattern and a pointer into it come first.
        said = [line.removeprefix("error: ") for line in said if line.startswith("error: ")] or said
    text = next((ours for start, ours in _REWORDED.items() if said[0].startswith(start)), said[0])
    if remote := _REMOTE.match(text):
        text = f"{remote[1]} is not in the schema, and nothing is fetched"
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
