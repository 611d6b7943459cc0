"""What carries messages between a client and its runtime, and knows when the runtime is lost."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import zmq
import zmq.asyncio

from branchline.errors import InvalidRequest, ProtocolError, RuntimeUnavailable
from branchline.paths import socket_path
from branchline.protocol import Bye, Ping, Pong, decode_runtime, encode_client

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from branchline.protocol import ClientMessage, RuntimeMessage

LINGER_MS = 200  # how long a closed socket may take to send what is queued: Bye, aborts
CONNECT_MS = 50  # between attempts to reach a runtime that is not there yet
PING_AFTER = 512  # messages: a fast stream is acknowledged before the heartbeat is due


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """How long a client waits before it gives up; all in seconds."""

    connect_timeout: float = 10.0  # for a runtime that should be there
    startup_timeout: float = 120.0  # for a runtime that has been launched
    reconnect_timeout: float = 1.0  # what a request waits for one that was lost; 0: not at all
    peer_timeout: float = 15.0  # of silence, after which the runtime counts as dead
    heartbeat: float = 2.0  # between signs of life

    def __post_init__(self) -> None:
        for name in ("connect_timeout", "startup_timeout"):
            if not getattr(self, name) > 0:
                raise InvalidRequest(f"{name}={getattr(self, name)}: must be above 0")
        if not self.reconnect_timeout >= 0:
            raise InvalidRequest(f"reconnect_timeout={self.reconnect_timeout}: must be at least 0")
        if not 0 < self.heartbeat < self.peer_timeout:
            raise InvalidRequest(
                f"heartbeat={self.heartbeat}: must be above 0 and "
                f"under peer_timeout={self.peer_timeout}"
            )


class Transport(Protocol):
    """A connection to one runtime. It is opened once, and ends once: closed by the client, or lost.

    Everything but the constructor is called on the background loop, and so are the callbacks.
    """

    address: str  # for messages to the user

    def open(self, deliver: Callable[[RuntimeMessage], None], lose: Callable[[str], None]) -> None:
        """Start: `deliver` gets each message, `lose` gets the reason when the runtime is gone."""

    def send(self, message: ClientMessage) -> None:
        """Send a message without waiting. Raises ProtocolError for one that cannot travel."""

    def close(self) -> None:
        """Leave. Nothing is delivered any more; the runtime ends what this client has running."""


class ZmqTransport:
    """A DEALER socket with a heartbeat.

    The runtime counts as lost when the connection breaks (at once when its process dies), or after
    `peer_timeout` of silence. Before its first message it has as long as the client cares to wait.
    """

    _deliver_to: Callable[[RuntimeMessage], None]
    _lose_to: Callable[[str], None]

    def __init__(self, address: str, config: ClientConfig) -> None:
        socket_path(address)  # a path that no socket can have is refused, not waited for
        self.address = address
        self._config = config
        self._seen = 0  # messages received
        self._acknowledged = 0  # of those, reported to the runtime
        self._unheard: list[bytes] = []  # frames sent before the first message came
        # Seconds, counted in beats: a stall of ours is not taken for the runtime's.
        self._silent = 0.0
        self._tasks: list[asyncio.Task[None]] = []
        self._socket: zmq.asyncio.Socket | None = None  # None: not open yet, closed, or lost
        self._breaks: zmq.asyncio.Socket | None = None  # tells when the connection breaks

    def open(self, deliver: Callable[[RuntimeMessage], None], lose: Callable[[str], None]) -> None:
        """Connect; the runtime may come up later.

        Raises:
            InvalidRequest: the address is malformed.
            RuntimeUnavailable: this process cannot have another socket.
        """
        self._deliver_to, self._lose_to = deliver, lose
        try:
            dealer = zmq.asyncio.Context.instance().socket(zmq.DEALER)
        except zmq.ZMQError as error:
            raise RuntimeUnavailable(
                f"{self.address}: no socket to connect with: {error}"
            ) from None
        dealer.setsockopt(zmq.SNDHWM, 0)
        dealer.setsockopt(zmq.RCVHWM, 0)
        dealer.setsockopt(zmq.LINGER, LINGER_MS)
        dealer.setsockopt(zmq.RECONNECT_IVL, CONNECT_MS)
        self._socket = dealer
        self._breaks = dealer.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        try:
            dealer.connect(self.address)
        except zmq.ZMQError as error:
            self._shut()
            raise InvalidRequest(
                f"address={self.address}: {error}; write ipc://PATH or tcp://HOST:PORT"
            ) from None
        self._start(self._read(dealer))
        self._start(self._watch(dealer, self._breaks))

    def send(self, message: ClientMessage) -> None:
        """Queue a message; without a high-water mark this never waits."""
        frame = encode_client(message)
        if self._socket is not None:
            self._socket.send(frame)
            if self._seen == 0:
                self._unheard.append(frame)

    def close(self) -> None:
        """Say goodbye and close the socket."""
        self.send(Bye())
        self._shut()

    def _start(self, work: Coroutine[None, None, None]) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(work))

    async def _read(self, dealer: zmq.asyncio.Socket) -> None:
        while not dealer.closed:
            self._take(await dealer.recv())

    async def _watch(self, dealer: zmq.asyncio.Socket, breaks: zmq.asyncio.Socket) -> None:
        """Wait for the connection to break, then read what had arrived before."""
        await breaks.recv_multipart()
        while self._seen == 0:  # nobody had answered yet: ZeroMQ connects again by itself
            for frame in self._unheard:  # they went to the one that is gone
                dealer.send(frame)
            await breaks.recv_multipart()
        while not dealer.closed and await dealer.poll(0):
            self._take(await dealer.recv())
        self._lose("the connection broke; its process has probably ended")

    async def _beat(self) -> None:
        """Give a sign of life at every beat, and count the beats without one."""
        while self._silent <= self._config.peer_timeout:
            self._ping()
            await asyncio.sleep(self._config.heartbeat)
            self._silent += self._config.heartbeat
        self._lose(f"it has been silent for {self._config.peer_timeout:g} s")

    def _ping(self) -> None:
        self._acknowledged = self._seen
        self.send(Ping(self._seen))

    def _take(self, frame: bytes) -> None:
        self._seen += 1
        self._silent = 0.0
        if self._seen == 1:
            self._unheard.clear()
            self._start(self._beat())
        elif self._seen - self._acknowledged >= PING_AFTER:
            self._ping()
        try:
            message = decode_runtime(frame)
        except ProtocolError as error:
            self._lose(f"it does not speak this protocol: {error}")
            return
        if not isinstance(message, Pong):
            self._deliver_to(message)

    def _lose(self, reason: str) -> None:
        if self._socket is not None:
            self._shut()
            self._lose_to(reason)

    def _shut(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._socket is not None and self._breaks is not None:
            self._socket.disable_monitor()
            self._breaks.close(linger=0)
            self._socket.close()
            self._socket = self._breaks = None
