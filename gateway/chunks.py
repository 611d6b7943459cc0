"""The chunks of a stream, written around what is new in them: a token costs one `json.dumps`."""

from __future__ import annotations

import json
import time
import uuid
from typing import TYPE_CHECKING, Any

from branchline.gateway.answering import DONE

if TYPE_CHECKING:
    from branchline.protocol import Finish


class Head:
    """What every chunk of an answer, and the answer that is not streamed, begin with."""

    def __init__(self, prefix: str, kind: str, model: str) -> None:
        self._fields = {
            "id": f"{prefix}-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": model,
        }
        self._kind = kind

    def whole(self, choices: list[dict[str, Any]], usage: dict[str, Any]) -> dict[str, Any]:
        """The answer at once."""
        return {**self._fields, "object": self._kind, "choices": choices, "usage": usage}

    def chunks(self, kind: str, *, usage: bool) -> Chunks:
        """Writes it as a stream; with `usage` a last chunk says what it cost."""
        return Chunks({**self._fields, "object": kind}, usage=usage)


def ended(finish: Finish) -> dict[str, str]:
    """What a choice says of its end beyond the protocol: which of two wishes could not be met."""
    return {"note": finish.note} if finish.note else {}


class Chunks:
    """Writes the events of one stream."""

    def __init__(self, fields: dict[str, Any], *, usage: bool) -> None:
        self._head = f'data: {json.dumps(fields)[:-1]}, "choices": ['
        self._tail = '], "usage": null}\n\n' if usage else "]}\n\n"
        self._usage = usage

    def choice(self, index: int, news: str, logprobs: Any = None) -> str:
        """The event of what is new in one choice; `news` is that member, as JSON."""
        scores = "null" if logprobs is None else json.dumps(logprobs)
        body = f'{{"index": {index}, {news}, "logprobs": {scores}, "finish_reason": null}}'
        return f"{self._head}{body}{self._tail}"

    def last(self, index: int, news: str, reason: str, finish: Finish, logprobs: Any = None) -> str:
        """The event that ends one choice."""
        rest = {"logprobs": logprobs, "finish_reason": reason, **ended(finish)}
        return f'{self._head}{{"index": {index}, {news}, {json.dumps(rest)[1:]}{self._tail}'

    def end(self, usage: dict[str, Any]) -> str:
        """What comes after the last choice."""
        if not self._usage:
            return DONE
        return f'{self._head}], "usage": {json.dumps(usage)}}}\n\n{DONE}'
