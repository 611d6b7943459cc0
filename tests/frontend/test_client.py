"""The client against a runtime in a thread of this process: answers, errors, aborts, loss."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from typing import TYPE_CHECKING

import pytest
import zmq

from branchline import eventloop
from branchline.client import Client, connect
from branchline.errors import (
    InvalidRequest,
    ProtocolError,
    RequestAborted,
    RuntimeFailed,
    RuntimeUnavailable,
)
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
    Score,
    Update,
    decode_client,
    encode_runtime,
)
from branchline.sampling_params import SamplingParams
from branchline.transport import ClientConfig, ZmqTransport
from tests.fake_runtime import CARD, running

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fake_runtime import Running

LONG = 1900


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("client")) as runtime:
        yield runtime


@pytest.fixture
def client(runtime: Running) -> Iterator[Client]:
    with connect(runtime.address) as client:
        yield client


def ask(client: Client, text: str = "hello", *, rid: str | None = None, **params) -> Generate:
    sampling = SamplingParams(**{"max_tokens": 3, **params})
    return Generate(rid or client.new_rid(), (("program", text),), sampling)


async def collect(client: Client, request: Generate) -> list[Update]:
    return [update async for update in client.generate(request)]


async def first(client: Client, request: Generate) -> None:
    """Take one update and lose interest."""
    async with contextlib.aclosing(client.generate(request)) as updates:  # type: ignore[type-var]
        async for _ in updates:
            return


# -------------------------------------------------------------------------------- answers


def test_the_card_is_known_once_connected(client: Client) -> None:
    assert client.card == CARD


def test_a_stream(client: Client) -> None:
    updates = eventloop.run(collect(client, ask(client)))
    assert [len(update.ids) for update in updates] == [1, 1, 1]
    assert updates[-1].finish is not None


def test_many_at_once_each_get_their_own(client: Client) -> None:
    async def all_of_them() -> list[list[Update]]:
        requests = [ask(client, "x" * length, max_tokens=8) for length in range(1, 60)]
        return await asyncio.gather(*(collect(client, request) for request in requests))

    for length, updates in enumerate(eventloop.run(all_of_them()), start=1):
        ids = [token for update in updates for token in update.ids]
        assert ids == [ord("a") + (length + position) % 26 for position in range(8)]


def test_n_choices_all_arrive(client: Client) -> None:
    updates = eventloop.run(collect(client, ask(client, n=4, max_tokens=6)))
    ends = [update.index for update in updates if update.finish]
    assert sorted(ends) == [0, 1, 2, 3]


def test_score_flush_and_info(client: Client) -> None:
    request = Score(client.new_rid(), (("program", "x"),), ("ab", "c"))
    scored = eventloop.run(client.score(request))
    assert [score.ids for score in scored.choices] == [(97, 98), (99,)]
    assert eventloop.run(client.flush()) == 7
    assert eventloop.run(client.info()).model == "toy"


def test_generate_text_returns_choices_in_the_order_of_the_prompts(client: Client) -> None:
    completions = client.generate_text(["ab", "a"], SamplingParams(max_tokens=3, n=2))
    assert [completion.text for completion in completions] == ["cde", "de", "bcd", "cd"]
    (one,) = client.generate_text("ab", SamplingParams(max_tokens=2))
    assert (one.text, one.ids, one.usage.prompt_tokens) == ("cd", (99, 100), 2)


def test_rids_are_unique(client: Client) -> None:
    assert len({client.new_rid() for _ in range(1000)}) == 1000


def test_the_client_starts_no_thread_of_its_own(runtime: Running) -> None:
    eventloop.background_loop()
    before = set(threading.enumerate())
    with connect(runtime.address) as client:
        client.generate_text("x")
        assert set(threading.enumerate()) == before


# -------------------------------------------------------------------------------- errors


def test_a_refusal_is_an_error_of_that_request_only(client: Client) -> None:
    """Faults 33, 35, 37: one bad item among good ones."""

    async def mixed() -> list[list[Update] | BaseException]:
        requests = [
            ask(client),
            ask(client, ""),
            ask(client, "x" * 5000),
            ask(client, stop_token_ids=(5000,)),
            ask(client, "half of a pair: \ud83d"),
            ask(client),
        ]
        work = (collect(client, request) for request in requests)
        return await asyncio.gather(*work, return_exceptions=True)

    good, *bad, last = eventloop.run(mixed())
    assert isinstance(good, list)
    assert isinstance(last, list)
    assert [type(error) for error in bad] == [InvalidRequest] * 4
    said = ["empty", "5000 tokens", "stop_token_ids holds 5000", "cannot be sent"]
    for error, part in zip(bad, said, strict=True):
        assert part in str(error)


def test_generate_text_raises_the_first_error_after_all_were_answered(client: Client) -> None:
    with pytest.raises(InvalidRequest, match="empty"):
        client.generate_text(["good", "", "x" * 5000])


def test_a_duplicate_rid_is_refused_here_and_the_first_goes_on(client: Client) -> None:
    """Fault 21."""

    async def twice() -> tuple[list[Update], BaseException]:
        work = asyncio.create_task(collect(client, ask(client, rid="same", max_tokens=50)))
        await asyncio.sleep(0)
        with pytest.raises(InvalidRequest, match="rid='same'") as refused:
            await collect(client, ask(client, rid="same"))
        return await work, refused.value

    updates, _ = eventloop.run(twice())
    assert len(updates) == 50


def test_an_oversized_request_is_refused_here(client: Client) -> None:
    with pytest.raises(InvalidRequest, match="at most"):
        client.generate_text("x" * (65 * 2**20))
    assert len(client.generate_text("x")) == 1


# -------------------------------------------------------------------------------- aborts


def test_a_closed_iterator_aborts(runtime: Running, client: Client) -> None:
    with runtime.aborting():
        eventloop.run(first(client, ask(client, max_tokens=LONG, n=3)))
    assert eventloop.run(collect(client, ask(client)))


def test_cancelling_a_generation_aborts(runtime: Running, client: Client) -> None:
    work = eventloop.submit(collect(client, ask(client, max_tokens=LONG)))
    runtime.wait_until(lambda: bool(runtime.loop.live))
    with runtime.aborting():
        work.cancel()


def test_cancelling_a_score_aborts(puppet: Puppet) -> None:
    with puppet.connect(heartbeat=5) as client:
        work = eventloop.submit(client.score(Score("s", (("program", "x"),), ("a", "b"))))
        assert [decode_client(puppet.receive()).type for _ in range(2)] == ["ping", "score"]
        work.cancel()
        assert decode_client(puppet.receive()) == Abort("s")


def test_a_finished_request_is_not_aborted(runtime: Running, client: Client) -> None:
    aborts = runtime.loop.aborts
    eventloop.run(collect(client, ask(client)))
    eventloop.run(client.info())
    assert runtime.loop.aborts == aborts


def test_closing_aborts_and_ends_what_is_pending(runtime: Running) -> None:
    client = connect(runtime.address)
    work = eventloop.submit(collect(client, ask(client, max_tokens=LONG)))
    runtime.wait_until(lambda: bool(runtime.loop.live))
    with runtime.aborting():
        client.close()
    with pytest.raises(RuntimeUnavailable, match="closed"):
        work.result(5)
    client.close()
    with pytest.raises(RuntimeUnavailable, match="closed"):
        client.generate_text("x")


# -------------------------------------------------------------------------------- loss


def test_nobody_there(tmp_path) -> None:
    begun = time.monotonic()
    with pytest.raises(RuntimeUnavailable, match=f"{tmp_path}/none.sock within 0.3 s"):
        connect(f"ipc://{tmp_path}/none.sock", connect_timeout=0.3)
    assert time.monotonic() - begun < 3


def test_a_runtime_that_comes_later_is_found(tmp_path) -> None:
    address = f"ipc://{tmp_path}/toy.sock"
    transport = ZmqTransport(address, ClientConfig())
    found: list[Client] = []
    waiting = threading.Thread(target=lambda: found.append(Client(transport, timeout=10)))
    waiting.start()
    time.sleep(0.2)
    with running(tmp_path):
        waiting.join()
        found[0].close()


def test_a_runtime_that_ends_is_noticed_at_once(tmp_path) -> None:
    with running(tmp_path) as runtime:
        client = connect(runtime.address)
        work = eventloop.submit(collect(client, ask(client, max_tokens=LONG)))
        runtime.wait_until(lambda: bool(runtime.loop.live))
    with pytest.raises(RuntimeUnavailable, match=f"lost the runtime at {client.address}"):
        work.result(5)
    with pytest.raises(RuntimeUnavailable, match="lost"):
        client.generate_text("x")
    client.close()


def test_a_bug_in_the_runtime_is_told_before_it_ends(tmp_path) -> None:
    with running(tmp_path) as runtime, connect(runtime.address) as client:
        work = eventloop.submit(collect(client, ask(client, max_tokens=LONG)))
        runtime.wait_until(lambda: bool(runtime.loop.live))
        runtime.loop.die()
        with pytest.raises(RuntimeFailed):
            work.result(5)


class Puppet:
    """A ROUTER socket that says what a test wants it to say."""

    def __init__(self, folder) -> None:
        self.address = f"ipc://{folder}/puppet.sock"
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.ROUTER)
        self.socket.bind(self.address)
        self.client = b""

    def receive(self) -> bytes:
        assert self.socket.poll(5000)
        self.client, frame = self.socket.recv_multipart()
        return frame

    def say(self, frame: bytes) -> None:
        self.socket.send_multipart([self.client, frame])

    def greet(self) -> None:
        assert decode_client(self.receive()) == Hello(PROTOCOL_VERSION, client="python")
        self.say(encode_runtime(Greeting(PROTOCOL_VERSION, CARD)))

    def connect(self, **timeouts: float) -> Client:
        """A client whose greeting we have answered."""
        greeter = threading.Thread(target=self.greet)
        greeter.start()
        client = connect(self.address, **timeouts)
        greeter.join()
        return client

    def close(self) -> None:
        self.socket.close(linger=0)
        self.context.term()


@pytest.fixture
def puppet(tmp_path) -> Iterator[Puppet]:
    with contextlib.closing(Puppet(tmp_path)) as puppet:
        yield puppet


def test_silence_is_death_after_the_configured_time(puppet: Puppet) -> None:
    client = puppet.connect(heartbeat=0.05, peer_timeout=0.3)
    work = eventloop.submit(collect(client, ask(client)))
    begun = time.monotonic()
    with pytest.raises(RuntimeUnavailable, match="silent for"):
        work.result(5)
    assert 0.2 < time.monotonic() - begun < 3
    client.close()


def test_a_runtime_of_another_version_is_an_error(puppet: Puppet) -> None:
    def refuse() -> None:
        puppet.receive()
        puppet.say(encode_runtime(Failure(None, "protocol", "version 1 is not version 2")))

    refuser = threading.Thread(target=refuse)
    refuser.start()
    with pytest.raises(RuntimeUnavailable, match="version 1 is not version 2"):
        connect(puppet.address)
    refuser.join()


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("invalid", InvalidRequest),
        ("aborted", RequestAborted),
        ("overloaded", RuntimeUnavailable),
        ("protocol", ProtocolError),
        ("internal", RuntimeFailed),
    ],
)
def test_each_failure_is_an_error_of_ours(puppet: Puppet, code, error) -> None:
    with puppet.connect(heartbeat=5) as client:
        work = eventloop.submit(collect(client, ask(client, rid="r")))
        puppet.say(encode_runtime(Failure(None, "invalid", "something else")))
        puppet.say(encode_runtime(Failure("unknown", "invalid", "somebody else")))
        puppet.say(encode_runtime(Outputs((Update("r"), Update("unknown")))))
        puppet.say(encode_runtime(Failure("r", code, "because")))
        with pytest.raises(error, match="because"):
            work.result(5)


def test_a_runtime_that_talks_nonsense_is_lost(puppet: Puppet) -> None:
    client = puppet.connect()
    work = eventloop.submit(collect(client, ask(client)))
    puppet.say(b"nonsense")
    with pytest.raises(RuntimeUnavailable, match="does not speak this protocol"):
        work.result(5)
    client.close()


def test_a_forgotten_client_notices(puppet: Puppet) -> None:
    client = puppet.connect()
    work = eventloop.submit(collect(client, ask(client)))
    puppet.say(encode_runtime(Failure(None, "protocol", "unknown connection: say hello first")))
    with pytest.raises(RuntimeUnavailable, match="unknown connection"):
        work.result(5)
    client.close()


@pytest.mark.parametrize(
    "timeouts",
    [{"heartbeat": 0.0}, {"heartbeat": 20.0}, {"connect_timeout": 0.0}, {"peer_timeout": 1.0}],
)
def test_timeouts_out_of_range_are_refused(timeouts: dict[str, float]) -> None:
    with pytest.raises(InvalidRequest, match=next(iter(timeouts))):
        connect("ipc:///nowhere", **timeouts)


@pytest.mark.parametrize("address", ["nonsense", "smoke://signal", "ipc://" + "x" * 200])
def test_a_malformed_address_is_refused(address: str) -> None:
    with pytest.raises(InvalidRequest, match="address="):
        connect(address)


def test_what_the_runtime_hears_of_a_cancelled_request(puppet: Puppet) -> None:
    with puppet.connect(heartbeat=5) as client:
        request = ask(client, rid="r")
        work = eventloop.submit(collect(client, request))
        heard = [decode_client(puppet.receive()) for _ in range(2)]
        work.cancel()
        heard.append(decode_client(puppet.receive()))
    heard.append(decode_client(puppet.receive()))
    assert heard == [Ping(1), request, Abort("r"), Bye()]
