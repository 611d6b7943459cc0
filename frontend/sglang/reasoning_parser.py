"""`ReasoningParser`, for programs that part reasoning from answers by themselves."""

from __future__ import annotations

from branchline.errors import InvalidRequest
from branchline.reasoning import FORMATS, Splitter, split


class ReasoningParser:
    """Splits the texts of one kind of model; `stream_reasoning=False` gives reasoning when whole.

    Raises:
        InvalidRequest: the kind is not known.
    """

    def __init__(self, model_type: str | None = None, stream_reasoning: bool = True) -> None:
        name = (model_type or "").lower()
        if name not in FORMATS:
            raise InvalidRequest(f"model_type={model_type!r}: must be one of {', '.join(FORMATS)}")
        self._marks = FORMATS[name]
        self._splitter = Splitter(self._marks)
        self._stream_reasoning = stream_reasoning
        self._held = ""

    def parse_non_stream(self, full_text: str) -> tuple[str, str]:
        """The reasoning, and the rest."""
        return split(full_text, self._marks)

    def parse_stream_chunk(self, chunk_text: str) -> tuple[str, str]:
        """What a piece of a stream adds to the reasoning, and to the rest."""
        reasoning, rest = self._splitter.push(chunk_text)
        if self._stream_reasoning:
            return reasoning, rest
        self._held += reasoning
        if not rest:
            return "", ""
        whole, self._held = self._held, ""
        return whole, rest
