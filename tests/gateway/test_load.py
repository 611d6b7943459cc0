"""Many at once: every stream its own text, and nothing left of the clients that were killed."""

from __future__ import annotations

import asyncio
import json
import random
import resource
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from branchline.gateway.app import create_app
from branchline.gateway.link import RuntimeLink
from branchline.gateway.server import serving
from tests.runtime.whole import LETTERS

from .stub_process import expected, serving_stub

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from .stub_process import Served

HOST = "127.0.0.1"
DESCRIPTORS = 4096  # both ends of every connection are in this process


@pytest.fixture(autouse=True)
def enough_descriptors() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(DESCRIPTORS, before[1]), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@contextmanager
def gateway(folder: Path, **settings: object) -> Iterator[tuple[Served, int]]:
    """A gateway over a whole runtime on the stub model, and its port."""
    with serving_stub(folder, pages=500_000, max_context=2000, **settings) as served:
        link = RuntimeLink(served.address)
        link.start()
        with serving(create_app(link), HOST) as server:
            until(lambda: link.lost is None)
            yield served, int(server.url.rpartition(":")[2])
        link.close()


def until(condition: Callable[[], bool], seconds: float = 20.0) -> float:
    """Wait; the seconds it took."""
    begun = time.monotonic()
    while not condition():
        assert time.monotonic() - begun < seconds, "it did not come about"
        time.sleep(0.005)
    return time.monotonic() - begun


def prompts(count: int, seed: int) -> list[str]:
    """Some share a long beginning, some a short one, some none; no two are the same."""
    draw = random.Random(seed)
    heads = ["".join(draw.choices(LETTERS[1:], k=length)) for length in (0, 3, 40)]
    found: dict[str, None] = {}
    while len(found) < count:
        found[draw.choice(heads) + "".join(draw.choices(LETTERS[1:], k=draw.randint(3, 12)))] = None
    return list(found)


class Stream:
    """One streamed completion over a connection of its own."""

    def __init__(self, port: int, prompt: str, tokens: int) -> None:
        self._port = port
        self.body = {
            "prompt": prompt,
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
        }
        self.text = ""
        self.reason: str | None = None
        self.is_done = False

    async def open(self) -> None:
        self._reader, self._writer = await asyncio.open_connection(HOST, self._port)
        content = json.dumps(self.body).encode()
        self._writer.write(
            b"POST /v1/completions HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n"
            b"Connection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(content), content)
        )
        status = await self._reader.readline()
        assert status.split()[1] == b"200", status
        await self._reader.readuntil(b"\r\n\r\n")

    async def event(self) -> bool:
        """Read the next event; False at the end of the stream."""
        while line := await self._reader.readline():
            if line == b"data: [DONE]\n":
                self.is_done = True
            elif line.startswith(b"data:"):
                (choice,) = json.loads(line[5:])["choices"]
                self.text += choice["text"]
                self.reason = choice["finish_reason"] or self.reason
                return True
        return False

    async def read(self) -> None:
        await self.open()
        while await self.event():
            pass
        self.kill()

    def kill(self) -> None:
        """Close the socket without a word."""
        self._writer.transport.abort()


async def read_all(streams: list[Stream]) -> None:
    await asyncio.gather(*(stream.read() for stream in streams))


def check_streams(port: int, count: int, tokens: int, *, seed: int) -> None:
    asked = prompts(count, seed)
    streams = [Stream(port, prompt, tokens) for prompt in asked]
    asyncio.run(read_all(streams))
    for prompt, stream in zip(asked, streams, strict=True):
        assert stream.text == expected(prompt, tokens)
        assert stream.reason == "length"
        assert stream.is_done


async def kill_mid_stream(port: int, killed: int, bystanders: int, tokens: int) -> list[Stream]:
    """Streams of which some are killed once each of them has begun; those that were read whole."""
    asked = prompts(killed + bystanders, seed=5)
    doomed = [Stream(port, prompt, 1900) for prompt in asked[:killed]]
    others = [Stream(port, prompt, tokens) for prompt in asked[killed:]]
    reading = asyncio.create_task(read_all(others))

    async def begin(stream: Stream) -> None:
        await stream.open()
        for _ in range(3):
            assert await stream.event()

    await asyncio.gather(*(begin(stream) for stream in doomed))
    for stream in doomed:
        stream.kill()
    await reading
    return others


def check_killed(served: Served, port: int, killed: int, bystanders: int, tokens: int) -> None:
    others = asyncio.run(kill_mid_stream(port, killed, bystanders, tokens))
    assert until(lambda: served.is_idle) < 1
    for stream in others:
        assert stream.text == expected(stream.body["prompt"], tokens)
    check_streams(port, 4, 10, seed=6)


def test_500_streams_are_neither_lost_nor_mixed_up(tmp_path: Path) -> None:
    with gateway(tmp_path, max_running=128, max_batch_tokens=1024) as (_, port):
        check_streams(port, 500, 16, seed=1)


def test_nothing_is_left_of_200_clients_that_were_killed(tmp_path: Path) -> None:
    with gateway(tmp_path, max_running=256, max_batch_tokens=1024) as (served, port):
        check_killed(served, port, killed=200, bystanders=20, tokens=30)
