"""Answers that come back as text get the ids they were written in.

A chat client sends the whole conversation each time, earlier answers as text. Tokenized anew, an
answer may have other ids than the model wrote, and what is cached is missed from there on. So the
ids of answers are kept for a while, under the text and the very ids before it::

    first request    [ template, question, template ]  answer        → kept: ids of the answer
    second request   [ template, question, template ][ answer ][ template, question, template ]
                       the same ids                    the same text → the ids that were kept

Where anything before the answer differs, it is tokenized as text. Only digests of texts are kept.
"""

from __future__ import annotations

import threading
from array import array
from collections import Counter, OrderedDict
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from branchline.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from branchline.protocol import Finish, Prompt
    from branchline.runtime.request import Request
    from branchline.runtime.text import Tokenizer

MOST_ANSWERS = 50_000
MOST_TOKENS = 4_000_000  # of all answers together; the oldest go


@dataclass(frozen=True, slots=True)
class _Answer:
    ids: array[int]
    tail: str  # of the text, behind the ids: a stop may cut inside a token


class Recall:
    """Remembers answers and finds them again. Thread-safe."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        most_answers: int = MOST_ANSWERS,
        most_tokens: int = MOST_TOKENS,
    ) -> None:
        self._tokenizer = tokenizer
        self._most_answers = most_answers
        self._most_tokens = most_tokens
        self._lock = threading.Lock()  # guards what follows
        self._answers: OrderedDict[tuple[bytes, bytes], _Answer] = OrderedDict()
        self._texts: Counter[bytes] = Counter()  # answers of this text
        self._tokens = 0

    def apply(self, prompt: Prompt, salt: str | None) -> tuple[Prompt, int]:
        """The prompt with the ids of the answers in it, and how many ids that is.

        An answer is a program piece of its own: a template has something before and after it.
        """
        pieces: list[Any] = []
        recalled = 0
        for piece in prompt:
            answer = None
            if piece[0] == "program" and pieces:
                answer = self._find(tuple(pieces), piece[1], salt)
            if answer is None:
                pieces.append(piece)
                continue
            pieces.append(("tokens", tuple(answer.ids)))
            recalled += len(answer.ids)
            if answer.tail:
                pieces.append(("program", answer.tail))
        return tuple(pieces), recalled

    def remember(self, request: Request, finish: Finish) -> None:
        """Keep what a request has answered.

        Not one with a special token among its ids: text that a client sends never is one.
        """
        ids = request.output[: finish.kept]
        text = request.text.text
        if not ids or not text or not self._tokenizer.special_ids.isdisjoint(ids):
            return
        answer = _Answer(array("i", ids), finish.tail)
        key = _text_key(text, request.salt), _ids_key(request.prompt)
        with self._lock:
            self._forget(key)
            self._answers[key] = answer
            self._texts[key[0]] += 1
            self._tokens += len(ids)
            while len(self._answers) > self._most_answers or self._tokens > self._most_tokens:
                self._forget(next(iter(self._answers)))

    def _find(self, before: Prompt, text: str, salt: str | None) -> _Answer | None:
        text_key = _text_key(text, salt)
        with self._lock:
            if text_key not in self._texts:
                return None
        try:
            ids = self._tokenizer.encode(before)
        except InvalidRequest:  # nothing before it has tokens
            return None
        key = text_key, _ids_key(ids)
        with self._lock:
            answer = self._answers.get(key)
            if answer is not None:
                self._answers.move_to_end(key)
        return answer

    def _forget(self, key: tuple[bytes, bytes]) -> None:
        answer = self._answers.pop(key, None)
        if answer is None:
            return
        self._tokens -= len(answer.ids)
        self._texts[key[0]] -= 1
        if not self._texts[key[0]]:
            del self._texts[key[0]]


def _text_key(text: str, salt: str | None) -> bytes:
    """Salts are told apart from each other, and from none, whatever the texts."""
    salted = b"" if salt is None else b"+" + salt.encode("utf-8", "surrogatepass")
    digest = blake2b(digest_size=16, key=blake2b(salted, digest_size=32).digest())
    digest.update(text.encode("utf-8", "surrogatepass"))
    return digest.digest()


def _ids_key(ids: Sequence[int]) -> bytes:
    return blake2b(array("i", ids).tobytes(), digest_size=16).digest()
