"""A whole runtime on the stub model: only the model and the tokenizer, of letters, are not real."""

from __future__ import annotations

from typing import TYPE_CHECKING

from branchline.errors import InvalidRequest
from branchline.protocol import (
    PROTOCOL_VERSION,
    Failure,
    Generate,
    Hello,
    ModelCard,
    Outputs,
    Update,
)
from branchline.runtime.admission import Admission
from branchline.runtime.service import Service
from branchline.sampling_params import SamplingParams

from .stub import EOS, VOCAB, Harness, continuation, make_harness

if TYPE_CHECKING:
    from collections.abc import Sequence

    from branchline.protocol import Prompt, RuntimeMessage
    from branchline.runtime.compiling import Compiler

A, B = b"client a", b"client b"
TH = VOCAB - 1  # the one token that is two letters
LETTERS = ".ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxy"
TEXTS = [*LETTERS[: VOCAB - 1], "th"]


def text_of(ids: Sequence[int]) -> str:
    return "".join(TEXTS[token] for token in ids)


def ids_of(text: str) -> list[int]:
    """Colons, which only templates have, are no tokens."""
    text = text.replace("th", "\0").replace(":", "")
    return [TH if c == "\0" else LETTERS.index(c) for c in text]


class Letters:
    """A tokenizer whose tokens are letters, but `th` is one."""

    def encode(self, prompt: Prompt) -> list[int]:
        ids: list[int] = []
        text = ""
        for kind, content in (*prompt, ("tokens", ())):
            if kind == "tokens":
                ids += ids_of(text) + list(content)
                text = ""
            else:
                text += content
        if not ids:
            raise InvalidRequest("the prompt is empty")
        return ids

    def encode_choice(self, prompt: Prompt, choice: str) -> tuple[list[int], int]:
        alone, ids = self.encode(prompt), self.encode((*prompt, ("program", choice)))
        pairs = enumerate(zip(alone, ids, strict=False))
        first = next((at for at, (a, b) in pairs if a != b), len(alone))
        if first == len(ids):
            raise InvalidRequest(f"the choice {choice!r} has no tokens")
        return ids, first

    def detokenizer(self, _prompt_ids: Sequence[int], **_settings: object) -> LetterStream:
        return LetterStream()


class LetterStream:
    """`Detokenizer` for letters."""

    def __init__(self) -> None:
        self.text = ""
        self._ends = [0]

    def push(self, token: int) -> str:
        self.text += TEXTS[token]
        self._ends.append(len(self.text))
        return TEXTS[token]

    def flush(self) -> str:
        return ""

    def split(self, cut: int) -> tuple[int, str]:
        kept = max(i for i, end in enumerate(self._ends) if end <= cut)
        return kept, self.text[self._ends[kept] : cut]


class Whole:
    """A service on a loop that is stepped by hand, and what it posted."""

    def __init__(self, *, compiler: Compiler | None = None, **settings: object) -> None:
        self.harness: Harness = make_harness(**settings)  # type: ignore[arg-type]
        self.loop = self.harness.loop
        self.posted: list[tuple[bytes, RuntimeMessage]] = []
        context = self.loop.limits.max_context
        card = ModelCard("stub", VOCAB, context, (EOS,))
        self.service = Service(
            Admission(Letters(), card),  # type: ignore[arg-type]
            self.loop._config,
            self.post,
            compiler,
        )
        self.service.attach(self.loop)
        self.loop._on_events = self.service.on_events
        for client in (A, B):
            self.tell(Hello(PROTOCOL_VERSION), client)
        self.posted.clear()

    def post(self, client: bytes, message: RuntimeMessage) -> None:
        self.posted.append((client, message))

    def tell(self, message, client: bytes = A) -> None:
        self.service.handle(client, message)

    def run(self, most: int = 2000) -> None:
        """Until nothing lives; every page is then accounted for."""
        self.harness.step()
        for _ in range(most):
            if self.loop.idle:
                self.harness.check_idle()
                return
            self.harness.step()
        raise AssertionError(f"not idle after {most} steps")

    def updates(self, rid: str = "r", client: bytes = A) -> list[Update]:
        return [
            update
            for to, message in self.posted
            if to == client and isinstance(message, Outputs)
            for update in message.updates
            if update.rid == rid
        ]

    def failures(self, rid: str = "r", client: bytes = A) -> list[Failure]:
        return [
            message
            for to, message in self.posted
            if to == client and isinstance(message, Failure) and message.rid == rid
        ]

    def text(self, rid: str = "r", client: bytes = A) -> str:
        return "".join(update.text for update in self.updates(rid, client))

    def ids(self, rid: str = "r", client: bytes = A) -> list[int]:
        return [token for update in self.updates(rid, client) for token in update.ids]


def ask(rid: str, prompt: str | list[int], *, stream: bool = True, **params: object) -> Generate:
    given = {"max_tokens": 8, "temperature": 0.0, **params}
    piece = ("program", prompt) if isinstance(prompt, str) else ("tokens", tuple(prompt))
    return Generate(rid, (piece,), SamplingParams(**given), stream=stream)  # type: ignore[arg-type]


def right(prompt: list[int], max_tokens: int, *, ignore_eos: bool = False) -> list[int]:
    return continuation(prompt, max_tokens, ignore_eos=ignore_eos)
