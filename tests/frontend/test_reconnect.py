"""A client whose runtime goes and comes back: at the same address, the same client."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import zmq

from branchline import eventloop
from branchline.client import Client, connect
from branchline.errors import InvalidRequest, RuntimeUnavailable
from branchline.protocol import PROTOCOL_VERSION, Failure, Generate, Greeting, encode_runtime
from branchline.sampling_params import SamplingParams
from tests.fake_runtime import CARD, running

if TYPE_CHECKING:
    from collections.abc import Callable

    from branchline.protocol import Update

FAKE = Path(__file__).parents[1] / "fake_runtime.py"
SHORT = SamplingParams(max_tokens=3)


def long(client: Client, *, stream: bool = True) -> Generate:
    params = SamplingParams(max_tokens=1900)
    return Generate(client.new_rid(), (("program", "x"),), params, stream=stream)


async def collect(client: Client, request: Generate) -> list[Update]:
    return [update async for update in client.generate(request)]


def text_of(client: Client) -> str:
    (completion,) = client.generate_text("ab", SHORT)
    return completion.text


def wait_until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.01)


def is_served(client: Client) -> bool:
    try:
        return text_of(client) == "cde"
    except RuntimeUnavailable:
        return False


def test_the_same_client_is_served_by_the_next_runtime(tmp_path: Path) -> None:
    with running(tmp_path) as first:
        client = connect(first.address)
        assert text_of(client) == "cde"
    with pytest.raises(RuntimeUnavailable, match="lost the runtime"):
        text_of(client)
    with running(tmp_path) as second:
        assert text_of(client) == "cde"
        work = eventloop.submit(collect(client, long(client)))
        second.wait_until(lambda: bool(second.loop.live))
        with second.aborting():
            work.cancel()
    client.close()


def test_again_and_again(tmp_path: Path) -> None:
    with running(tmp_path) as runtime:
        client = connect(runtime.address)
    for _ in range(4):
        with running(tmp_path):
            assert text_of(client) == "cde"
    client.close()


def test_without_patience_a_request_fails_at_once(tmp_path: Path) -> None:
    with running(tmp_path) as runtime:
        client = connect(runtime.address, reconnect_timeout=0)
        info = eventloop.submit(collect(client, long(client, stream=False)))
        runtime.wait_until(lambda: bool(runtime.loop.live))
    with pytest.raises(RuntimeUnavailable):
        info.result(5)
    begun = time.monotonic()
    for _ in range(20):
        with pytest.raises(RuntimeUnavailable, match="lost"):
            text_of(client)
    assert time.monotonic() - begun < 1
    with running(tmp_path):
        wait_until(lambda: is_served(client))
    client.close()


def test_many_that_wait_are_all_served_when_it_is_back(tmp_path: Path) -> None:
    with running(tmp_path) as runtime:
        client = connect(runtime.address, reconnect_timeout=10)
        card = client.card

    async def all_of_them() -> list[list[Update]]:
        asks = [
            Generate(client.new_rid(), (("program", "x" * length),), SHORT)
            for length in range(1, 30)
        ]
        return await asyncio.gather(*(collect(client, ask) for ask in asks))

    wait_until(lambda: not is_alive(client))
    work = eventloop.submit(all_of_them())
    with running(tmp_path):
        for length, updates in enumerate(work.result(10), start=1):
            assert "".join(update.text for update in updates) == "".join(
                chr(ord("a") + (length + position) % 26) for position in range(3)
            )
    assert client.card == card
    client.close()


def is_alive(client: Client) -> bool:
    """Whether it has not noticed a loss."""

    async def ask() -> None:
        await asyncio.wait_for(client.info(), 0.2)

    try:
        eventloop.run(ask())
    except (RuntimeUnavailable, TimeoutError):
        return False
    return True


def test_closing_ends_the_search(tmp_path: Path) -> None:
    with running(tmp_path) as runtime:
        client = connect(runtime.address, reconnect_timeout=0.01)
    with pytest.raises(RuntimeUnavailable, match="lost"):
        text_of(client)
    client.close()
    with running(tmp_path), pytest.raises(RuntimeUnavailable, match="closed"):
        text_of(client)
    client.close()


def start(address: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-P", str(FAKE), "--model=toy", f"--address={address}"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_a_killed_process_is_noticed_within_two_seconds_and_its_successor_serves(
    tmp_path: Path,
) -> None:
    address = f"ipc://{tmp_path}/toy.sock"
    with start(address) as first:
        client = connect(address)
        work = eventloop.submit(collect(client, long(client)))
        wait_until(lambda: eventloop.run(client.info()).running == 1)
        os.kill(first.pid, signal.SIGKILL)
        begun = time.monotonic()
        with pytest.raises(RuntimeUnavailable, match="lost the runtime"):
            work.result(5)
        assert time.monotonic() - begun < 2
    with start(address) as second:
        assert second.stdout is not None
        assert "toy at" in second.stdout.readline()
        assert text_of(client) == "cde"
        client.close()
        second.terminate()


class Doorman:
    """A ROUTER that hears what comes, answers what it is told to, and can slam the door."""

    def __init__(self, address: str) -> None:
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.ROUTER)
        self.socket.bind(address)

    def answer(self, message) -> None:
        assert self.socket.poll(5000), "nobody came"
        client, _ = self.socket.recv_multipart()
        if message is not None:
            self.socket.send_multipart([client, encode_runtime(message)])

    def close(self) -> None:
        self.socket.close(linger=0)
        self.context.term()


def test_a_hello_that_died_with_its_runtime_is_said_again(tmp_path: Path) -> None:
    """A restarted runtime can die while it loads: after it was connected to, before it greets."""
    with running(tmp_path) as runtime:
        client = connect(runtime.address)
    for _ in range(2):
        doorman = Doorman(client.address)
        doorman.answer(None)
        doorman.close()
    with running(tmp_path):
        wait_until(lambda: is_served(client))
    client.close()


def test_a_runtime_of_another_version_is_not_taken_for_the_lost_one(tmp_path: Path) -> None:
    with running(tmp_path) as runtime:
        client = connect(runtime.address, reconnect_timeout=0.5)
    doorman = Doorman(client.address)
    doorman.answer(Failure(None, "protocol", "version 3 is not version 4"))
    with pytest.raises(RuntimeUnavailable, match="version 3 is not version 4"):
        text_of(client)
    doorman.close()
    with running(tmp_path):
        wait_until(lambda: is_served(client))
    client.close()


def test_a_client_that_was_forgotten_says_hello_again(tmp_path: Path) -> None:
    """As after a long sleep of its machine: the runtime has dropped it."""
    with running(tmp_path) as runtime:
        client = connect(runtime.address)
    doorman = Doorman(client.address)
    doorman.answer(Greeting(PROTOCOL_VERSION, CARD))
    doorman.answer(Failure(None, "protocol", "unknown connection: say hello first"))
    doorman.answer(Greeting(PROTOCOL_VERSION, CARD))
    assert client.card == CARD
    client.close()
    doorman.close()


def test_a_search_without_an_end_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="reconnect_timeout=-1"):
        connect("ipc:///nowhere", reconnect_timeout=-1)
