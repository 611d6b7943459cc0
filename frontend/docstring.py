"""What a function's docstring says of it and of its parameters."""

from __future__ import annotations

import inspect
import itertools
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

# The sections of Google's style, by which the description ends.
_SECTION = re.compile(r"^(Args|Arguments|Parameters|Returns?|Yields?|Raises|Examples?|Notes?):\s*$")
_ARGUMENTS = ("Args", "Arguments", "Parameters")
_PARAMETER = re.compile(r"^\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$")


def described(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """What it does, and what each parameter is, of those that an Args section names."""
    lines = (inspect.getdoc(function) or "").splitlines()
    headings = [at for at, line in enumerate(lines) if _SECTION.match(line)]
    parameters: dict[str, str] = {}
    for start, end in itertools.pairwise([*headings, len(lines)]):
        if lines[start].rstrip().removesuffix(":") in _ARGUMENTS:
            parameters |= _parameters(lines[start + 1 : end])
    return _joined(lines[: headings[0] if headings else None]), parameters


def _parameters(lines: list[str]) -> dict[str, str]:
    """Each entry of a section, with the lines that go on from it: those are indented further."""
    texts: dict[str, list[str]] = {}
    depth, name = None, ""
    for line in lines:
        indent = len(line) - len(line.lstrip())
        depth = indent if depth is None and line.strip() else depth
        found = _PARAMETER.match(line.strip()) if indent == depth else None
        if found:
            name = found[1]
            texts[name] = [found[2]]
        elif name and line.strip():
            texts[name].append(line)
    return {name: _joined(words) for name, words in texts.items()}


def _joined(lines: list[str]) -> str:
    """Lines as one text; paragraphs stay apart."""
    paragraphs = "\n".join(line.strip() for line in lines).strip().split("\n\n")
    return "\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
