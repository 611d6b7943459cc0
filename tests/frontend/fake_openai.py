"""An endpoint of the OpenAI protocol without a model, on Python's own HTTP server.

A token is a character and its id the code point; what it says is a function of the prompt.
"""

from __future__ import annotations

import json
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@dataclass
class Refusal:
    """Answered instead, once."""

    status: int
    body: str = '{"error": {"message": "as asked"}}'
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class FakeOpenAI:
    """What it says, what it was asked, and how it misbehaves."""

    reply: Callable[[str], str]
    url: str = ""
    asked: list[tuple[str, dict[str, str], dict[str, Any]]] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    cut_after: int | None = None  # events of a stream, or bytes of an answer
    pace: float = 0.0  # seconds between the events of a stream
    reports_usage: bool = True
    raw: bytes | None = None  # what a 200 has for a body, whatever was asked
    finish_reason: str | None = None
    hung_up: threading.Event = field(default_factory=threading.Event)

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [body for _, _, body in self.asked]

    def texts(self, body: dict[str, Any]) -> list[tuple[str, str]]:
        """(text, finish reason) of each choice."""
        prompt = prompt_of(body)
        return [self._text(body, prompt, index) for index in range(body.get("n", 1))]

    def _text(self, body: dict[str, Any], prompt: str, index: int) -> tuple[str, str]:
        said = self.reply(prompt) + (str(index) if index else "")
        biases = body.get("logit_bias", {})
        allowed = [chr(int(token)) for token, bias in biases.items() if bias > 0]
        if allowed:
            said = said[0] if said[0] in allowed else min(allowed)
        ends = [at for stop in body.get("stop", []) if (at := said.find(stop)) >= 0]
        said, reason = (said[: min(ends)], "stop") if ends else (said, "stop")
        most = body.get("max_tokens", body.get("max_completion_tokens", 16))
        if len(said) >= most:
            said, reason = said[:most], "length"
        return said, self.finish_reason or reason

    def usage(self, body: dict[str, Any]) -> dict[str, Any]:
        written = sum(len(text) for text, _ in self.texts(body))
        return {
            "prompt_tokens": len(prompt_of(body)),
            "completion_tokens": written,
            "prompt_tokens_details": {"cached_tokens": 2},
        }


def prompt_of(body: dict[str, Any]) -> str:
    if "prompt" in body:
        return str(body["prompt"])
    turns = [f"[{message['role']}]{message['content']}" for message in body["messages"]]
    return "".join(turns) + ("" if body.get("continue_final_message") else "[assistant]")


def logprobs_of(body: dict[str, Any], text: str) -> dict[str, Any] | None:
    """-1 for each token, and below it as many alternatives as were asked for."""
    wanted = body.get("top_logprobs", 0) if "messages" in body else body.get("logprobs")
    if not body.get("logprobs") and not wanted:
        return None
    tops = [{c: -1.0, **{f"{c}{k}": -2.0 - k for k in range(wanted - 1)}} for c in text]
    if "messages" not in body:
        return {"tokens": list(text), "token_logprobs": [-1.0] * len(text), "top_logprobs": tops}
    return {
        "content": [
            {
                "token": c,
                "logprob": -1.0,
                "top_logprobs": [
                    {"token": t, "logprob": p} for t, p in reversed(top.items()) if wanted
                ],
            }
            for c, top in zip(text, tops, strict=True)
        ]
    }


def choice_of(body: dict[str, Any], index: int, text: str, key: str) -> dict[str, Any]:
    said = {key: {"content": text}} if "messages" in body else {"text": text}
    return {"index": index, **said, "logprobs": logprobs_of(body, text), "finish_reason": None}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    fake: FakeOpenAI

    def log_message(self, *_: object) -> None:
        """Nothing: the tests look at `asked`."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.fake.asked.append((self.path, headers, body))
        try:
            if self.fake.refusals:
                self._refuse(self.fake.refusals.pop(0))
            elif self.fake.raw is not None:
                self._send(200, self.fake.raw)
            elif body.get("stream"):
                self._stream(body)
            else:
                self._answer(body)
        except (BrokenPipeError, ConnectionResetError):
            self.fake.hung_up.set()
        self.close_connection = True

    def _refuse(self, refusal: Refusal) -> None:
        self._send(refusal.status, refusal.body.encode(), refusal.headers)

    def _answer(self, body: dict[str, Any]) -> None:
        choices = [
            choice_of(body, index, text, "message") | {"finish_reason": reason}
            for index, (text, reason) in enumerate(self.fake.texts(body))
        ]
        self._send(200, json.dumps({"choices": choices, "usage": self.fake.usage(body)}).encode())

    def _send(self, status: int, data: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[: self.fake.cut_after])

    def _stream(self, body: dict[str, Any]) -> None:
        """Chunks whose borders are not those of the events."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.write(b"e\r\n: a comment\n\n\n\r\n")
        for number, event in enumerate(self._events(body)):
            if number == self.fake.cut_after:
                return
            data = f"data: {event}\r\n\r\n".encode() if number % 2 else f"data:{event}\n\n".encode()
            for part in (data[:9], data[9:]):
                self.wfile.write(f"{len(part):x}; part\r\n".encode() + part + b"\r\n")
                self.wfile.flush()
            time.sleep(self.fake.pace)
        self.wfile.write(b"0\r\n\r\n")

    def _events(self, body: dict[str, Any]) -> Iterator[str]:
        texts = self.fake.texts(body)
        if "messages" in body:
            yield json.dumps({"choices": [{"index": 0, "delta": {"role": "assistant"}}]})
        for at in range(max(len(text) for text, _ in texts)):
            for index, (text, _) in enumerate(texts):
                if at < len(text):
                    yield json.dumps({"choices": [choice_of(body, index, text[at], "delta")]})
        for index, (_, reason) in enumerate(texts):
            last = {"index": index, "delta": {}, "text": "", "finish_reason": reason}
            yield json.dumps({"choices": [last]})
        if self.fake.reports_usage and body["stream_options"]["include_usage"]:
            yield json.dumps({"choices": [], "usage": self.fake.usage(body)})
        yield "[DONE]"


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


@contextmanager
def serving(reply: Callable[[str], str] | str = "ok") -> Iterator[FakeOpenAI]:
    """An endpoint that answers until the block ends."""
    fake = FakeOpenAI(reply if callable(reply) else lambda _: reply)
    handler = type("Bound", (Handler,), {"fake": fake})
    server = Server(("127.0.0.1", 0), handler)
    fake.url = f"http://127.0.0.1:{server.server_port}/v1"
    thread = threading.Thread(target=lambda: server.serve_forever(0.01))
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
