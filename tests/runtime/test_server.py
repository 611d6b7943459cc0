"""The server over real sockets, with peers that misbehave."""

from __future__ import annotations

import contextlib
import socket
import time
from typing import TYPE_CHECKING

import msgpack
import pytest
import zmq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from branchline.errors import InvalidRequest, RuntimeUnavailable
from branchline.protocol import (
    PROTOCOL_VERSION,
    Abort,
    Bye,
    Failure,
    Generate,
    Greeting,
    Hello,
    Outputs,
    Ping,
    Pong,
    Score,
    decode_runtime,
    encode_client,
)
from branchline.runtime.config import RuntimeConfig
from branchline.runtime.server import Server
from branchline.sampling_params import SamplingParams
from tests.fake_runtime import running

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fake_runtime import Running

PATIENCE = 5000  # ms


class Peer:
    """A bare DEALER socket, for messages that no client of ours would send."""

    def __init__(self, address: str, *, hello: bool = True) -> None:
        self.seen = 0  # messages, heartbeats too
        self.socket = zmq.Context.instance().socket(zmq.DEALER)
        self.socket.connect(address)
        if hello:
            self.send(Hello(PROTOCOL_VERSION))
            assert isinstance(self.receive(), Greeting)

    def send(self, message) -> None:
        self.socket.send(encode_client(message))

    def receive(self):
        """The next message that is not a heartbeat."""
        while self.socket.poll(PATIENCE):
            message = decode_runtime(self.socket.recv())
            self.seen += 1
            if not isinstance(message, Pong):
                return message
        raise AssertionError("the runtime says nothing")

    def is_served(self) -> bool:
        """Whether a request of this peer is answered whole; everything before it is skipped."""
        self.send(ask("check"))
        while True:
            message = self.receive()
            if isinstance(message, Outputs) and message.updates[-1].finish:
                return message.updates[-1].rid == "check"

    def close(self) -> None:
        self.socket.close(linger=0)


def ask(rid: str, max_tokens: int = 2) -> Generate:
    return Generate(rid, (("program", "hello"),), SamplingParams(max_tokens=max_tokens))


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("server")) as runtime:
        yield runtime


@pytest.fixture
def peer(runtime: Running) -> Iterator[Peer]:
    with contextlib.closing(Peer(runtime.address)) as peer:
        yield peer


def test_each_step_is_one_message(peer: Peer) -> None:
    for rid in ("a", "b"):
        peer.send(ask(rid, 20))
    counts: dict[str, int] = {"a": 0, "b": 0}
    while counts != {"a": 20, "b": 20}:
        message = peer.receive()
        assert isinstance(message, Outputs)
        rids = [update.rid for update in message.updates]
        assert len(set(rids)) == len(rids)
        for rid in rids:
            counts[rid] += 1


def test_a_stranger_is_told_to_say_hello(runtime: Running) -> None:
    with contextlib.closing(Peer(runtime.address, hello=False)) as stranger:
        stranger.send(ask("r"))
        failure = stranger.receive()
        assert (failure.rid, failure.code) == (None, "protocol")
        assert "hello" in failure.message
        stranger.send(Hello(PROTOCOL_VERSION + 1))
        assert f"version {PROTOCOL_VERSION + 1}" in stranger.receive().message


def test_the_hello_of_a_later_version_is_understood(runtime: Running) -> None:
    with contextlib.closing(Peer(runtime.address, hello=False)) as stranger:
        hello = {"type": "hello", "version": PROTOCOL_VERSION + 1, "client": "x", "codec": "new"}
        stranger.socket.send(msgpack.packb(hello))
        assert f"version {PROTOCOL_VERSION}:" in stranger.receive().message


def mutated(message) -> st.SearchStrategy[bytes]:
    """Frames that are nearly a message: one field replaced, one dropped, or some bytes changed."""
    raw = msgpack.unpackb(encode_client(message), use_list=False)
    junk = st.none() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary()
    junk = st.recursive(junk, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))
    frame = msgpack.packb(raw)
    return st.one_of(
        st.tuples(st.sampled_from(sorted(raw)), junk).map(
            lambda change: msgpack.packb(raw | {change[0]: change[1]})
        ),
        st.sampled_from(sorted(raw)).map(
            lambda name: msgpack.packb({k: v for k, v in raw.items() if k != name})
        ),
        st.tuples(st.integers(0, len(frame) - 1), st.binary(max_size=3)).map(
            lambda cut: frame[: cut[0]] + cut[1] + frame[cut[0] + len(cut[1]) :]
        ),
    )


FRAMES = st.one_of(
    st.binary(max_size=64),
    st.sampled_from([b"\x81\x80\x01", b"\x91" * 5000, b"\xdd\xff\xff\xff\xff", b"\xd6\xff" * 3]),
    mutated(ask("fuzz")),
    mutated(Score("fuzz", (("program", "x"),), ("a", "b"))),
    mutated(Abort("fuzz")),
    mutated(Ping(3)),
    mutated(Bye()),
    mutated(Hello(PROTOCOL_VERSION)),
)


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.lists(FRAMES, min_size=1, max_size=3), min_size=1, max_size=5))
def test_no_frame_disturbs_the_runtime(runtime: Running, messages: list[list[bytes]]) -> None:
    with contextlib.closing(Peer(runtime.address)) as wild:
        for frames in messages:
            wild.socket.send_multipart(frames)
        with contextlib.closing(Peer(runtime.address)) as tame:
            assert tame.is_served()
    assert not runtime.status


def test_a_bad_frame_is_answered_with_its_rid(peer: Peer) -> None:
    peer.socket.send(msgpack.packb({"type": "generate", "rid": "r", "prompt": 3}))
    failure = peer.receive()
    assert (failure.rid, failure.code) == ("r", "protocol")
    assert "prompt" in failure.message
    peer.socket.send_multipart([encode_client(ask("r")), b"more"])
    assert "2 frames" in peer.receive().message
    assert peer.is_served()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("stop_token_ids", [None]),
        ("stop", [""]),
        ("stop", ["a", ""]),
        ("stop", [3]),
        ("stop", None),
        ("temperature", float("nan")),
        ("seed", -1),
        ("n", 0),
        ("banned", 1),
    ],
)
def test_a_bad_parameter_is_refused_by_name_beside_a_neighbour(
    peer: Peer, field: str, value: object
) -> None:
    """Faults 30 and 33: what never becomes a message never reaches the loop."""
    peer.send(ask("neighbour", 30))
    raw = msgpack.unpackb(encode_client(ask("bad")), use_list=False)
    raw["params"][field] = value
    peer.socket.send(msgpack.packb(raw))
    failures, said = [], 0
    while said < 30 or not failures:
        message = peer.receive()
        if isinstance(message, Failure):
            failures.append(message)
        else:
            said += len(message.updates)
    assert [(f.rid, f.code) for f in failures] == [("bad", "protocol")]
    assert field in failures[0].message


def test_an_oversized_frame_only_ends_its_connection(runtime: Running) -> None:
    with (
        contextlib.closing(Peer(runtime.address)) as fat,
        contextlib.closing(Peer(runtime.address)) as slim,
    ):
        fat.send(ask("r", 1900))
        runtime.wait_until(lambda: len(runtime.loop.live) == 1)
        with runtime.aborting():
            fat.socket.send(b"\0" * (65 * 2**20))
        assert slim.is_served()


def test_a_client_whose_socket_closed_is_noticed_at_the_next_message(runtime: Running) -> None:
    peer = Peer(runtime.address)
    peer.send(ask("r", 1900))
    assert isinstance(peer.receive(), Outputs)
    with runtime.aborting():
        peer.close()


def test_a_client_that_waits_for_the_end_is_noticed_by_the_heartbeat(runtime: Running) -> None:
    peer = Peer(runtime.address)
    quiet = Generate("r", (("program", "x"),), SamplingParams(max_tokens=1900), stream=False)
    peer.send(quiet)
    runtime.wait_until(lambda: len(runtime.loop.live) == 1)
    with runtime.aborting():
        peer.close()


def test_a_silent_client_is_dropped(tmp_path) -> None:
    with (
        running(tmp_path, heartbeat=0.05, peer_timeout=0.5) as runtime,
        contextlib.closing(Peer(runtime.address)) as silent,
        contextlib.closing(Peer(runtime.address)) as lively,
    ):
        silent.send(ask("r", 1900))
        runtime.wait_until(lambda: len(runtime.loop.live) == 1)
        while runtime.loop.live:
            lively.send(Ping(lively.seen))
            time.sleep(0.01)
        assert lively.is_served()
        silent.send(Ping(0))
        while not isinstance(message := silent.receive(), Failure):
            assert isinstance(message, Outputs)
        assert message.code == "protocol", "it must notice that it has been forgotten"


def test_a_client_that_does_not_read_is_cut_off(tmp_path) -> None:
    with (
        running(tmp_path, backlog_messages=50, heartbeat=1.0) as runtime,
        contextlib.closing(Peer(runtime.address)) as slow,
    ):
        slow.send(ask("r", 1900))
        runtime.wait_until(lambda: len(runtime.loop.live) == 1)
        runtime.wait_until(lambda: not runtime.loop.live)
        while not isinstance(message := slow.receive(), Failure):
            assert isinstance(message, Outputs)
        assert (message.rid, message.code) == ("r", "overloaded")
        assert 50 <= slow.seen < 100
        slow.send(Ping(slow.seen))
        assert slow.is_served(), "having caught up, it is served again"


def test_a_reader_that_acknowledges_is_not_cut_off(tmp_path) -> None:
    with (
        running(tmp_path, backlog_messages=50, heartbeat=1.0) as runtime,
        contextlib.closing(Peer(runtime.address)) as reader,
    ):
        reader.send(ask("r", 300))
        for _ in range(300):
            message = reader.receive()
            assert isinstance(message, Outputs)
            reader.send(Ping(reader.seen))
        assert message.updates[-1].finish is not None


def test_a_bug_in_the_loop_reaches_every_client_and_ends_the_process(tmp_path) -> None:
    with (
        running(tmp_path) as runtime,
        contextlib.closing(Peer(runtime.address)) as first,
        contextlib.closing(Peer(runtime.address)) as second,
    ):
        for peer in (first, second):
            peer.send(ask("r", 1900))
            assert isinstance(peer.receive(), Outputs)
        runtime.loop.die()
        for peer in (first, second):
            while not isinstance(message := peer.receive(), Failure):
                assert isinstance(message, Outputs)
            assert (message.rid, message.code) == ("r", "internal")
        runtime.wait_until(lambda: runtime.status == [1])


# -------------------------------------------------------------------------------- the address


def test_a_live_socket_is_not_taken(runtime: Running, peer: Peer) -> None:
    with pytest.raises(RuntimeUnavailable, match="another runtime is listening"):
        Server(RuntimeConfig(address=runtime.address))
    assert peer.is_served()


def test_a_stale_socket_is_taken(tmp_path) -> None:
    path = tmp_path / "toy.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert path.exists()
    with running(tmp_path) as runtime, contextlib.closing(Peer(runtime.address)) as peer:
        assert peer.is_served()
    assert not path.exists()


def test_a_file_is_not_taken(tmp_path) -> None:
    path = tmp_path / "toy.sock"
    path.write_text("mine")
    with pytest.raises(InvalidRequest, match="not a socket"):
        Server(RuntimeConfig(address=f"ipc://{path}"))
    assert path.read_text() == "mine"


@pytest.mark.parametrize("address", ["nonsense", "smoke://signal", "tcp://nowhere"])
def test_a_malformed_address_is_refused(address: str) -> None:
    with pytest.raises(InvalidRequest, match="ipc://PATH or tcp://HOST:PORT"):
        Server(RuntimeConfig(address=address))


def test_a_taken_port_is_refused(tmp_path) -> None:
    with running(tmp_path, address="tcp://127.0.0.1:*") as runtime:
        with contextlib.closing(Peer(runtime.address)) as peer:
            assert peer.is_served()
        with pytest.raises(RuntimeUnavailable, match="listening"):
            Server(RuntimeConfig(address=runtime.address))
