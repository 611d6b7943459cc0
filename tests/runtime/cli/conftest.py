"""A runtime that says one thing to everybody, for tests of what talks to runtimes."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
import zmq

from branchline.protocol import (
    PROTOCOL_VERSION,
    ChatTemplate,
    ChoiceScore,
    ClientMessage,
    Finish,
    Generate,
    Greeting,
    Hello,
    Info,
    InfoReply,
    ModelCard,
    Outputs,
    Ping,
    Pong,
    RuntimeInfo,
    RuntimeMessage,
    Score,
    Scored,
    Update,
    Usage,
    decode_client,
    encode_runtime,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

ANSWER = "all is well"
CARD = ModelCard(
    name="fake",
    vocab_size=10,
    context_length=1024,
    stop_token_ids=(0,),
    chat_template=ChatTemplate(
        prefix={role: f"<{role}>" for role in ("system", "user", "assistant")},
        suffix={role: f"</{role}>" for role in ("system", "user", "assistant")},
    ),
)
INFO = RuntimeInfo(
    model="fake",
    uptime=12.0,
    running=3,
    waiting=1,
    pages_total=1000,
    pages_free=640,
    pages_cached=300,
    pages_private=60,
    pages_protected=200,
    prompt_tokens=400,
    cached_prompt_tokens=300,
    computed_prompt_tokens=100,
    generated_tokens=55,
    requests_finished=7,
    requests_aborted=2,
    retractions=1,
    evicted_pages=0,
    steps=90,
    tokens_per_second=81.5,
)


class FakeRuntime(threading.Thread):
    """Answers every generation with `ANSWER` and prefers the first of all choices."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.heard: list[ClientMessage] = []
        self._ended = threading.Event()
        self._context = zmq.Context()
        self._router = self._context.socket(zmq.ROUTER)
        self._router.bind("tcp://127.0.0.1:*")
        self.address: str = self._router.getsockopt_string(zmq.LAST_ENDPOINT)

    def run(self) -> None:
        while not self._ended.is_set():
            if self._router.poll(20):
                client, frame = self._router.recv_multipart()
                message = decode_client(frame)
                self.heard.append(message)
                answer = self._answer(message)
                if answer is not None:
                    self._router.send_multipart((client, encode_runtime(answer)))
        self._router.close(linger=0)
        self._context.term()

    def end(self) -> None:
        self._ended.set()
        self.join()

    def _answer(self, message: ClientMessage) -> RuntimeMessage | None:
        match message:
            case Hello():
                return Greeting(PROTOCOL_VERSION, CARD)
            case Generate():
                usage = Usage(prompt_tokens=20, cached_tokens=15, completion_tokens=1)
                finish = Finish("stop", kept=1)
                update = Update(message.rid, text=ANSWER, ids=(1,), finish=finish, usage=usage)
                return Outputs((update,))
            case Score():
                scores = [ChoiceScore((1,), (-1.0 - i,)) for i, _ in enumerate(message.choices)]
                return Scored(message.rid, tuple(scores), Usage(20, 15, 0))
            case Info():
                return InfoReply(message.rid, INFO)
            case Ping():
                return Pong()
            case _:
                return None


@pytest.fixture
def runtime() -> Iterator[FakeRuntime]:
    fake = FakeRuntime()
    fake.start()
    yield fake
    fake.end()
