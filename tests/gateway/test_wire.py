"""The gateway over the real wire, with a runtime that has no model: aborts, limits, losses."""

from __future__ import annotations

import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from branchline.client import connect
from branchline.gateway.app import create_app
from branchline.gateway.link import RuntimeLink
from branchline.gateway.server import serving
from branchline.gateway.settings import Settings
from tests.fake_runtime import CONTEXT, running
from tests.gateway.http import send

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fake_runtime import Running

LONG = 1900
COMPLETE = "/v1/completions"


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("wire")
    with running(folder, max_running=8, max_waiting=8) as runtime:
        yield runtime


@pytest.fixture(scope="module")
def url(runtime: Running) -> Iterator[str]:
    with connect(runtime.address) as client, serving(create_app(client)) as server:
        yield server.url


@contextmanager
def asking(url: str, body: dict, path: str = COMPLETE) -> Iterator[socket.socket]:
    """A request that has been sent, on a connection that is closed with the block."""
    data = json.dumps(body).encode()
    place = urlsplit(url)
    with socket.create_connection((place.hostname, place.port), timeout=10) as connection:
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        head += "Connection: close\r\n"
        connection.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        yield connection


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        (COMPLETE, {"prompt": "hi", "max_tokens": LONG}),
        (COMPLETE, {"prompt": "hi", "max_tokens": LONG, "n": 2}),
        (COMPLETE, {"prompt": ["hi", "ho", "ha"], "max_tokens": LONG}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
        ("/generate", {"text": ["a", "b"], "sampling_params": {"max_new_tokens": LONG}}),
    ],
)
def test_a_client_that_goes_ends_its_requests(
    runtime: Running, url: str, path: str, body: dict, stream: bool
) -> None:
    with runtime.aborting(), asking(url, {**body, "stream": stream}, path) as connection:
        if stream:
            assert connection.recv(64).startswith(b"HTTP/1.1 200")
        else:
            runtime.wait_until(lambda: bool(runtime.loop.live))
    assert send(url, COMPLETE, {"prompt": "hi", "max_tokens": 2}).json["choices"][0]["text"]


def test_streams_are_not_mixed_up(url: str) -> None:
    """The toy answers by the length of the prompt."""

    def text(length: int) -> str:
        body = {"prompt": "x" * length, "max_tokens": 50, "stream": True}
        *chunks, done = send(url, COMPLETE, body).events
        assert done == "[DONE]"
        return "".join(chunk["choices"][0]["text"] for chunk in chunks)

    with ThreadPoolExecutor(12) as pool:
        texts = list(pool.map(text, range(1, 13)))
    alphabet = "abcdefghijklmnopqrstuvwxyz" * 3
    assert texts == [alphabet[length : length + 50] for length in range(1, 13)]


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_is_too_long_is_told_the_numbers(url: str, stream: bool) -> None:
    reply = send(url, COMPLETE, {"prompt": "x" * (CONTEXT + 5), "stream": stream})
    assert reply.status == 400
    assert f"{CONTEXT + 5} tokens" in reply.error["message"]
    assert f"at most {CONTEXT - 1}" in reply.error["message"]


def test_the_prompt_that_fails_takes_its_neighbours_along(runtime: Running, url: str) -> None:
    body = {"prompt": ["x", "x" * (CONTEXT + 5)], "max_tokens": LONG}
    assert send(url, COMPLETE, body).status == 400
    # A stream may have begun with its neighbour's first words: then it says so in its place.
    reply = send(url, COMPLETE, {**body, "stream": True})
    assert reply.status == 400 or "[DONE]" not in reply.text
    assert f"{CONTEXT + 5} tokens" in reply.text
    runtime.wait_until(lambda: not runtime.loop.live)


def test_too_many_for_the_runtime_is_429(runtime: Running, url: str) -> None:
    with runtime.aborting(), asking(url, {"prompt": "x", "n": 10, "max_tokens": LONG}):
        runtime.wait_until(lambda: len(runtime.loop.live) == 10)
        reply = send(url, COMPLETE, {"prompt": "x", "n": 10})
    assert reply.status == 429
    assert reply.headers["retry-after"] == "1"
    assert "at most 16" in reply.error["message"]


def test_too_many_for_the_gateway_is_429(runtime: Running) -> None:
    body = {"prompt": ["x", "y"], "max_tokens": LONG, "stream": True}
    settings = Settings(max_open=3, retry_after=9)
    with connect(runtime.address) as client, serving(create_app(client, settings)) as server:
        with runtime.aborting(), asking(server.url, body) as connection:
            assert connection.recv(64).startswith(b"HTTP/1.1 200")
            for stream in (False, True):
                reply = send(server.url, COMPLETE, {**body, "stream": stream})
                assert reply.status == 429
                assert reply.headers["retry-after"] == "9"
                assert "4 prompts" in reply.error["message"]
        assert send(server.url, COMPLETE, {"prompt": ["x", "y", "z"]}).status == 200


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": "\ud800"},
        {"prompt": "x", "priority": 2**70},
        {"prompt": "x", "seed": 2**70},
        {"prompt": "x", "cache_salt": "\ud800"},
        {"prompt": [2**70]},
        {"prompt": ""},
        {"prompt": ["x", ""]},
        {"prompt": "x", "stop_token_ids": [10**6]},
        {"prompt": "x", "logit_bias": {"999999": 1}},
    ],
)
def test_what_cannot_travel_or_be_served_is_the_clients_fault(url: str, body: dict) -> None:
    reply = send(url, COMPLETE, body)
    assert reply.status == 400
    assert reply.error["type"] == "invalid_request_error"


def test_the_gateway_is_there_before_and_after_its_runtime(tmp_path: Path) -> None:
    link = RuntimeLink(f"ipc://{tmp_path}/toy.sock")
    link.start()
    ask = {"prompt": "hi", "max_tokens": 2}
    try:
        with serving(create_app(link)) as server:
            assert send(server.url, "/v1/models").status == 503
            for _ in range(2):
                for path, body in ((COMPLETE, ask), ("/health", None)):
                    began = time.monotonic()
                    reply = send(server.url, path, body)
                    assert reply.status == 503
                    assert str(tmp_path) in reply.error["message"]
                    assert time.monotonic() - began < 1.0, "at once"
                with ExitStack() as open_answers:
                    with running(tmp_path) as runtime:
                        runtime.wait_until(lambda: link.lost is None)
                        assert send(server.url, COMPLETE, ask).status == 200
                        endless = {**ask, "max_tokens": LONG, "stream": True}
                        stream = open_answers.enter_context(asking(server.url, endless))
                        assert stream.recv(64).startswith(b"HTTP/1.1 200")
                    text = b"".join(iter(partial(stream.recv, 65536), b""))
                assert b'"error"' in text
                assert b"runtime_unavailable" in text
                assert b"[DONE]" not in text
            assert send(server.url, "/v1/models").status == 200  # of the one that was there
    finally:
        link.close()
