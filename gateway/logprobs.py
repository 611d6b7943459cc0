"""Log-probabilities as OpenAI tells them: one shape for completions, another for chats."""

from __future__ import annotations

import codecs
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from branchline.protocol import TokenLogprob, Update

# JSON has no infinity: what is impossible is this unlikely.
LOWEST = -9999.0
# A token that is no text by itself is told as its bytes, as OpenAI does.
_ESCAPED = re.compile(r"bytes:((?:\\x[0-9a-f]{2})+)")


def finite(logprob: float | None) -> float | None:
    """A log-probability that JSON can say."""
    return None if logprob is None else max(logprob, LOWEST)


def text_of(token: TokenLogprob) -> str:
    """What a token reads as; its id where the backend does not tell."""
    return named(token.text, token.token)


def named(text: str | None, token: int) -> str:
    """A text, or in its place the token's id."""
    return f"token_id:{token}" if text is None else text


def bytes_of(text: str) -> bytes:
    """The bytes that a token adds to an output."""
    escaped = _ESCAPED.fullmatch(text)
    if escaped is None:
        return text.encode("utf-8", "replace")
    return bytes.fromhex(escaped.group(1).replace("\\x", ""))


def reported(update: Update) -> Sequence[TokenLogprob]:
    """The generated tokens that an output shows: not the stop id that ended it."""
    ended_by_id = update.finish is not None and isinstance(update.finish.matched, int)
    return update.logprobs[:-1] if ended_by_id else update.logprobs


def alternatives(token: TokenLogprob) -> list[tuple[str, float]]:
    """The most likely tokens of a position, by their texts."""
    texts: tuple[str | None, ...] = token.top_texts or (None,) * len(token.top)
    return [
        (named(text, other), max(logprob, LOWEST))
        for text, (logprob, other) in zip(texts, token.top, strict=True)
    ]


def chat_logprobs(tokens: Iterable[TokenLogprob]) -> dict[str, Any]:
    """As chats have them."""
    return {"content": [_chat_token(token) for token in tokens], "refusal": None}


def _chat_token(token: TokenLogprob) -> dict[str, Any]:
    top = [_entry(text, logprob) for text, logprob in alternatives(token)]
    return {**_entry(text_of(token), finite(token.logprob)), "top_logprobs": top}


def _entry(text: str, logprob: float | None) -> dict[str, Any]:
    return {"token": text, "logprob": logprob, "bytes": list(bytes_of(text))}


class CompletionLogprobs:
    """As completions have them: parallel lists, with the place of each token in the text.

    Args:
        start: characters before the first token.
    """

    def __init__(self, start: int = 0) -> None:
        self._offset = start
        self._characters = codecs.getincrementaldecoder("utf-8")("replace")

    def take(self, tokens: Sequence[TokenLogprob], top: int) -> dict[str, Any]:
        """The next tokens, each with up to `top` alternatives."""
        return {
            "tokens": [text_of(token) for token in tokens],
            "token_logprobs": [finite(token.logprob) for token in tokens],
            "top_logprobs": [self._top(token) for token in tokens] if top else None,
            "text_offset": [self._place(token) for token in tokens],
        }

    @staticmethod
    def _top(token: TokenLogprob) -> dict[str, float] | None:
        # Of several tokens with one text the likelier counts: it comes first.
        return dict(reversed(alternatives(token))) or None

    def _place(self, token: TokenLogprob) -> int:
        place = self._offset
        self._offset += len(self._characters.decode(bytes_of(text_of(token))))
        return place
