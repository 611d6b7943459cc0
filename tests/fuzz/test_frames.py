"""Random frames on the runtime's socket: nobody else notices, and the next request is served."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import msgpack
import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from branchline.grammar import Grammar
from branchline.protocol import (
    PROTOCOL_VERSION,
    Abort,
    Conversation,
    Ended,
    Flush,
    Generate,
    Greeting,
    Hello,
    Info,
    Inspect,
    Ping,
    Score,
    decode_runtime,
    encode_client,
)
from branchline.sampling_params import SamplingParams

from .bodies import LEAVES, MESSAGES, TOOL, places, replaced
from .test_bodies import quick

if TYPE_CHECKING:
    from collections.abc import Iterator

    from branchline.protocol import ClientMessage

    from .target import Target

PATIENCE = 10_000  # ms
SOME = SamplingParams(max_tokens=4, n=2, stop=("x",), logit_bias={7: -100.0}, top_logprobs=2)
REGEX = SamplingParams(max_tokens=4, grammar=Grammar("regex", "[a-z]+"))
FRAMES: list[ClientMessage] = [
    Generate("r", (("template", "<|im_start|>"), ("program", "x"), ("tokens", (5, 6))), SOME),
    Generate("r", (("program", "x"),), REGEX, timeout=0.2, priority=3, program="p"),
    Generate("r", params=SOME, conversation=Conversation(tuple(MESSAGES), (TOOL,)), stream=False),
    Score("r", (("program", "It is "),), ("good", "bad"), unconditional=True, cache_salt="s"),
    Abort("r"),
    Ended("p", (0, 1)),
    Flush("r"),
    Info("r"),
    Inspect("r", nodes=10),
    Ping(1),
    Hello(PROTOCOL_VERSION),
]
ODD = [b"", b"\x81\x80\x01", b"\x91" * 5000, b"\xdd\xff\xff\xff\xff", b"\xd6\xff" * 3, b"\xc1"]
VALUES = LEAVES.filter(lambda value: not isinstance(value, int) or -(2**63) <= value < 2**64)


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    """A message with a value or two replaced, then perhaps some of its bytes; or any bytes."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(max_size=80) | st.sampled_from(ODD))
    raw = msgpack.unpackb(encode_client(draw(st.sampled_from(FRAMES))), strict_map_key=False)
    for _ in range(draw(st.integers(0, 2))):
        raw = replaced(raw, draw(st.sampled_from(places(raw))), draw(VALUES))
    frame = msgpack.packb(raw, unicode_errors="surrogatepass")
    if draw(st.integers(0, 3)) == 0:
        at, put = draw(st.integers(0, len(frame))), draw(st.binary(max_size=3))
        frame = frame[:at] + put + frame[at + len(put) :]
    return frame


@contextlib.contextmanager
def peer(address: str) -> Iterator[zmq.Socket[bytes]]:
    dealer = zmq.Context.instance().socket(zmq.DEALER)
    dealer.connect(address)
    try:
        dealer.send(encode_client(Hello(PROTOCOL_VERSION)))
        assert dealer.poll(PATIENCE), "no greeting"
        assert isinstance(decode_runtime(dealer.recv()), Greeting)
        yield dealer
    finally:
        dealer.close(linger=100)


def check_frames(fuzzed: Target, examples: int) -> None:
    """In batches of 5, each followed by a good request over HTTP."""

    @quick(examples // 5)
    @given(st.lists(st.lists(frames(), min_size=1, max_size=2), min_size=5, max_size=5))
    def run(messages: list[list[bytes]]) -> None:
        with peer(fuzzed.address) as wild:
            for parts in messages:
                wild.send_multipart(parts)
            while wild.poll(2):
                decode_runtime(wild.recv())
            fuzzed.serves()

    run()


def test_frames(fuzzed: Target) -> None:
    check_frames(fuzzed, 200)


@pytest.mark.slow
def test_3000_frames(fuzzed: Target) -> None:
    check_frames(fuzzed, 3000)
