"""Parts what a model thinks from what it answers, whole or as it comes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from branchline.errors import InvalidRequest
from branchline.nodes import ExprList, Gen, Node, as_node

REASONING_SUFFIX = "_reasoning_content"


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """How a model marks its reasoning."""

    start: str = "<think>"
    end: str = "</think>"
    opened: bool = False  # the text begins inside the reasoning, with or without the start mark
    keep: bool = False  # the reasoning stays in the state's text


_OPENED = ReasoningFormat(opened=True)
_MARKED = ReasoningFormat()
FORMATS = {
    "deepseek-r1": _OPENED,
    "deepseek-v3": _MARKED,
    "glm45": _MARKED,
    "kimi": ReasoningFormat("◁think▷", "◁/think▷"),
    "qwen3": _MARKED,
    "qwen3-thinking": _OPENED,
    "step3": _OPENED,
}


def separate_reasoning(
    expr: Node | None = None,
    model_type: str | ReasoningFormat | None = None,
    *,
    keep: bool = False,
) -> ExprList:
    """The expression, with the reasoning of its gens kept apart from their answers.

    `s["x"]` is the answer, `s["x_reasoning_content"]` the reasoning; both can be streamed. White
    space around either goes.

    Args:
        expr: what has the gens.
        model_type: how the model marks its reasoning: a name of `FORMATS`, or a format of your own;
            None is `<think>…</think>` at the start of the text.
        keep: leave the reasoning in the state's text, for the model to read later on.

    Raises:
        InvalidRequest: nothing in the expression is a gen, or the name is not known.
    """
    marks = _format(model_type)
    marks = replace(marks, keep=keep or marks.keep)
    leaves = () if expr is None else as_node(expr).leaves()
    if not any(isinstance(leaf, Gen) for leaf in leaves):
        raise InvalidRequest(f"separate_reasoning({expr!r}): needs an expression with a gen")
    return ExprList(
        tuple(replace(leaf, reasoning=marks) if isinstance(leaf, Gen) else leaf for leaf in leaves)
    )


def _format(model_type: str | ReasoningFormat | None) -> ReasoningFormat:
    if isinstance(model_type, ReasoningFormat):
        return model_type
    if model_type is None:
        return _MARKED
    if model_type not in FORMATS:
        raise InvalidRequest(
            f"model_type={model_type!r}: known are {', '.join(FORMATS)}; else a ReasoningFormat"
        )
    return FORMATS[model_type]


class Splitter:
    """Text in, reasoning and answer out: what it has given of either it never takes back."""

    def __init__(self, marks: ReasoningFormat) -> None:
        self._marks = marks
        self._part = "start"
        self._reasoned = False  # there was reasoning: white space around the parts goes
        self._held = ""  # not given yet: part of a mark perhaps, or white space at an end perhaps
        self._begun = False  # the part has given something

    def push(self, text: str) -> tuple[str, str]:
        """What is new in the reasoning, and in the answer."""
        self._held += text
        if self._part == "start" and not self._decide():
            return "", ""
        reasoning = self._reasoning() if self._part == "reasoning" else ""
        return reasoning, self._give(len(self._held)) if self._part == "answer" else ""

    def finish(self) -> tuple[str, str]:
        """The rest of both, when the text is over."""
        rest = self._held.strip() if self._reasoned and not self._begun else self._held
        rest = rest.rstrip() if self._reasoned else rest
        self._held = ""
        if self._part == "start" and self._marks.opened:
            return rest.strip(), ""
        return (rest, "") if self._part == "reasoning" else ("", rest)

    def _decide(self) -> bool:
        """Whether it is clear where the text begins."""
        start = self._marks.start
        seen = self._held.lstrip()
        if seen.startswith(start):
            self._held = seen[len(start) :]
            self._enter("reasoning")
        elif start.startswith(seen):
            return False  # a part of the mark, or nothing at all
        elif self._marks.opened:
            self._enter("reasoning")
        else:
            self._part = "answer"
        return True

    def _reasoning(self) -> str:
        end = self._marks.end
        at = self._held.find(end)
        if at < 0:
            return self._give(len(self._held) - _overlap(self._held, end))
        rest = self._held[at + len(end) :]
        given = self._give(at)
        self._held = rest
        self._enter("answer")
        return given

    def _enter(self, part: str) -> None:
        self._part, self._reasoned, self._begun = part, True, False

    def _give(self, upto: int) -> str:
        """What of the held text is certain to stay, up to a position."""
        given = self._held[:upto]
        if not self._reasoned:
            self._held = self._held[upto:]
            return given
        kept = given.rstrip()
        self._held = self._held[len(kept) :]
        if not self._begun:
            kept = kept.lstrip()
        self._begun = self._begun or bool(kept)
        return kept


def split(text: str, marks: ReasoningFormat) -> tuple[str, str]:
    """The reasoning and the answer in a whole text."""
    splitter = Splitter(marks)
    first, rest = splitter.push(text), splitter.finish()
    return first[0] + rest[0], first[1] + rest[1]


def _overlap(text: str, mark: str) -> int:
    """How many of the text's last characters may be the start of a mark."""
    longest = min(len(text), len(mark) - 1)
    return next((n for n in range(longest, 0, -1) if mark.startswith(text[-n:])), 0)
