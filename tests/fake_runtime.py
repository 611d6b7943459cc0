"""A runtime without a model: the real service and server over a toy tokenizer and a scripted loop.

A character is a token, `answer` says what is generated, `logprob` how likely a token is.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from branchline.errors import InvalidRequest
from branchline.protocol import (
    Failure,
    Finish,
    ModelCard,
    RuntimeInfo,
    TokenLogprob,
    Update,
    Usage,
)
from branchline.runtime.admission import Admission
from branchline.runtime.config import RuntimeConfig
from branchline.runtime.inspection import Picture, Run
from branchline.runtime.server import Server, main
from branchline.runtime.service import Service

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from branchline.protocol import Conversation, Prompt
    from branchline.runtime.request import Request

VOCAB = 300
CONTEXT = 2000
EOS = 299
CARD = ModelCard("toy", VOCAB, CONTEXT, (EOS,))


class ToyTokenizer:
    """Every character is a token, but `th` is one; follows the real tokenizer's contract."""

    def encode(self, prompt: Prompt) -> list[int]:
        ids: list[int] = []
        text = ""
        for kind, content in (*prompt, ("tokens", ())):
            if kind == "tokens":
                ids += self._encode_text(text) + list(content)
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

    def converse(self, conversation: Conversation) -> Prompt:
        """`role: content` lines, then who is to answer."""
        pieces: list = []
        for message in conversation.messages:
            if message["content"] == "refuse":
                raise InvalidRequest("the chat template refuses this conversation: it is told to")
            pieces += [("template", message["role"] + ": "), ("program", message["content"] or "")]
            pieces.append(("template", "\n"))
        return tuple(pieces[:-1] if conversation.goes_on else [*pieces, ("template", "assistant:")])

    def token_texts(self) -> Callable[[int], str]:
        """What a token reads as."""
        return lambda token: "th" if token == 256 else chr(token)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return "".join("th" if token == 256 else chr(token) for token in ids)

    def detokenizer(self, prompt_ids: Sequence[int], *, skip_special_tokens: bool) -> None:
        """The scripted loop makes the text itself."""

    def _encode_text(self, text: str) -> list[int]:
        if "💥" in text:
            raise RuntimeError("the tokenizer has a bug")
        return [256 if c == "\0" else ord(c) % 256 for c in text.replace("th", "\0")]


def logprob(position: int, token: int) -> float:
    return -(position + 1) - token / 1000


def answer(request: Request, position: int) -> int:
    """The token that is generated at a position of the output."""
    return ord("a") + (len(request.prompt) + request.index + position) % 26


class FakeLoop:
    """`Loop`'s interface; a step gives each request one token, choice i ends i steps early."""

    def __init__(self, on_events: Callable[[list[tuple[Request, Update | Failure]]], None]) -> None:
        self.live: list[Request] = []
        self.aborts = 0
        self.ends: list[tuple] = []
        self.most_live = 0
        self._on_events = on_events
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._events: list[tuple[Request, Update | Failure]] = []
        self._thread = threading.Thread(target=self._run)
        self._stopping = False
        self._error: Exception | None = None
        self.on_fatal: Callable[[BaseException], None] = lambda _: None

    def submit(self, requests: Sequence[Request]) -> None:
        for request in requests:
            assert len(request.prompt) + request.params.max_tokens <= CONTEXT
        self._inbox.put(lambda: self.live.extend(requests))

    def abort(self, requests: Sequence[Request]) -> None:
        self._inbox.put(lambda: self._abort(list(requests)))

    def ended(self, client: bytes, program: str | None = None, branch=()) -> None:
        self.ends.append((client, program, branch))

    def flush(self, done: Callable[[int], None]) -> None:
        self._inbox.put(lambda: done(7))

    def info(self, done: Callable[[RuntimeInfo], None]) -> None:
        numbers = [0] * 16
        self._inbox.put(lambda: done(RuntimeInfo("toy", 1.5, len(self.live), *numbers)))

    def inspect(self, nodes: int, done: Callable[[Picture], None]) -> None:
        tokens = np.array([104, 105], dtype=np.int32)
        runs = [Run(1, -1, 0, 2, 2, 0, 1, tokens, salted=False)][:nodes]
        self.info(lambda info: done(Picture(runs, 1, (), info)))

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping = True
        if self._thread.is_alive():
            self._thread.join()

    def die(self) -> None:
        """Meet a bug at the next step."""
        self._error = RuntimeError("boom")

    def step(self) -> None:
        self.receive()
        self.most_live = max(self.most_live, len(self.live))
        for request in list(self.live):
            self._advance(request)
        self.send()

    def receive(self) -> None:
        while not self._inbox.empty():
            self._inbox.get()()

    def send(self) -> None:
        if self._events:
            events, self._events = self._events, []
            self._on_events(events)

    def _run(self) -> None:
        while not self._stopping:
            if self._error is not None:
                self._fail(list(self.live), "internal")
                self.send()
                self.on_fatal(self._error)
                return
            self.step()
            time.sleep(0.001)

    def _abort(self, requests: list[Request]) -> None:
        self.aborts += 1
        self._fail([request for request in requests if request in self.live], "aborted")

    def _fail(self, requests: list[Request], code: str) -> None:
        for request in requests:
            self.live.remove(request)
            self._events.append((request, Failure(request.rid, code, code)))  # type: ignore[arg-type]

    def _advance(self, request: Request) -> None:
        params = request.params
        if params.max_tokens:
            request.tokens.append(answer(request, len(request.tokens) - len(request.prompt)))
        ids = tuple(request.tokens[len(request.prompt) :])
        ended = len(ids) >= params.max_tokens - request.index
        if ended:
            self.live.remove(request)
        if ended or request.stream:
            news = ids[-1:] if request.stream else ids
            self._events.append((request, self._update(request, news, ended=ended)))

    def _update(self, request: Request, news: tuple[int, ...], *, ended: bool) -> Update:
        start = request.params.logprob_start
        scored = enumerate(request.prompt) if start is not None and ended else ()
        output = len(request.tokens) - len(request.prompt)
        return Update(
            request.rid,
            request.index,
            text="".join(map(chr, news)),
            ids=news,
            prompt_logprobs=tuple(
                TokenLogprob(logprob(at, token) if at else None, token)
                for at, token in scored
                if start is not None and at >= start
            ),
            finish=Finish("length", kept=output, seed=request.seed) if ended else None,
            usage=Usage(len(request.prompt), 0, output) if ended else None,
        )


@dataclass
class Parts:
    """What `assemble` returns, of fakes."""

    service: Service
    loop: FakeLoop

    def summary(self, address: str) -> str:
        return f"toy at {address}"


def assemble(config: RuntimeConfig, post, on_fatal) -> Parts:
    if config.model == "broken":
        raise InvalidRequest("model=broken: as asked")
    service = Service(Admission(ToyTokenizer(), CARD), config, post)  # type: ignore[arg-type]
    loop = FakeLoop(service.on_events)
    loop.on_fatal = on_fatal
    service.attach(loop)  # type: ignore[arg-type]
    return Parts(service, loop)


@dataclass
class Running:
    """A runtime that serves from a thread of this process."""

    address: str
    loop: FakeLoop
    server: Server
    status: list[int]  # what the server returned, once it has

    @contextmanager
    def aborting(self) -> Iterator[None]:
        """A block in which something aborts; left once the loop has been told and is idle."""
        before = self.loop.aborts
        yield
        self.wait_until(lambda: self.loop.aborts > before and not self.loop.live)

    def wait_until(self, condition: Callable[[], bool], seconds: float = 5.0) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, "it did not come about"
            time.sleep(0.002)


@contextmanager
def running(folder: Path, **settings: object) -> Iterator[Running]:
    """Serve in `folder` until the block ends."""
    settings = {"address": f"ipc://{folder}/toy.sock", "heartbeat": 0.05, **settings}
    config = RuntimeConfig(**settings)  # type: ignore[arg-type]
    server = Server(config)
    parts = assemble(config, server.post, lambda _: server.stop(1))
    runtime = Running(server.address, parts.loop, server, [])
    thread = threading.Thread(target=lambda: runtime.status.append(server.run(parts.service)))
    parts.loop.start()
    thread.start()
    try:
        yield runtime
    finally:
        server.stop()
        thread.join()
        parts.loop.stop()
        server.close()


if __name__ == "__main__":  # a process for the launcher's tests, in place of the real server
    stand_in = ModuleType("branchline.runtime.assembly")
    stand_in.assemble = assemble  # type: ignore[attr-defined]
    sys.modules[stand_in.__name__] = stand_in
    sys.exit(main())
