"""The runtime process: one ROUTER socket, served by one thread, in front of the service."""

from __future__ import annotations

import argparse
import gc
import logging
import os
import signal
import socket
import sys
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import zmq

from branchline.errors import BranchlineError, InvalidRequest, ProtocolError, RuntimeUnavailable
from branchline.paths import claim, default_address, socket_path
from branchline.protocol import (
    MAX_MESSAGE_BYTES,
    Bye,
    Hello,
    Ping,
    Pong,
    decode_client,
    encode_runtime,
)
from branchline.runtime.cli.flags import add_config_flags, given_settings
from branchline.runtime.config import RuntimeConfig

if TYPE_CHECKING:
    from collections.abc import Sequence

    from branchline.protocol import RuntimeMessage
    from branchline.runtime.service import Service

LINGER_MS = 1000  # for the last answers, when the process ends
RECEIVE_AT_ONCE = 64  # frames read before what is ready is sent: a burst does not delay streams

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Peer:
    """A client at the other end of the socket."""

    sent: int = 0  # messages
    seen: int = 0  # of those, by the client's own account
    silent: float = 0.0  # seconds, counted in beats: a stall of ours is not taken for the client's


class Server:
    """Moves messages between the socket and a service. Only the thread in `run` touches the socket.

    Raises:
        RuntimeUnavailable: another process listens at the address.
        InvalidRequest: the address is malformed.
    """

    def __init__(self, config: RuntimeConfig, *, parent_pid: int | None = None) -> None:
        self._config = config
        self._parent_pid = parent_pid  # the process ends when this one does
        self._peers: dict[bytes, Peer] = {}
        self._outbox: deque[tuple[bytes, RuntimeMessage]] = deque()
        self._status: int | None = None  # of the process; None: it goes on
        self._router = _bind(config.address or default_address())
        self.address: str = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        self._woken, self._waker = socket.socketpair()
        self._woken.settimeout(0.0)
        self._waker.settimeout(0.0)

    # ------------------------------------------------------------------ from any thread

    def post(self, client: bytes, message: RuntimeMessage) -> None:
        """Queue a message for a client."""
        self._outbox.append((client, message))
        self.wake()

    def stop(self, status: int = 0) -> None:
        """Make `run` return, once what is queued has been sent. The first status stands."""
        if self._status is None:
            self._status = status
        self.wake()

    def wake(self) -> None:
        """Let `run` look around."""
        try:
            self._waker.send(b"!")
        except BlockingIOError:  # full: it is awake
            return

    @property
    def wake_fd(self) -> int:
        """Wakes `run` when a byte is written, as `signal.set_wakeup_fd` does."""
        return self._waker.fileno()

    # ------------------------------------------------------------------ on the I/O thread

    def run(self, service: Service) -> int:
        """Serve until `stop`; the exit status."""
        poller = zmq.Poller()
        poller.register(self._router, zmq.POLLIN)
        poller.register(self._woken, zmq.POLLIN)
        beat = time.monotonic() + self._config.heartbeat
        while self._status is None:
            ready = dict(poller.poll(max(0, int((beat - time.monotonic()) * 1000) + 1)))
            if self._woken.fileno() in ready:
                self._woken.recv(4096)
            if self._router in ready:
                self._receive(service)
            if time.monotonic() >= beat:
                self._beat(service)
                beat = time.monotonic() + self._config.heartbeat
            self._send(service)
        self._send(service)
        return self._status

    def close(self) -> None:
        """Close the socket, giving the last messages time to leave."""
        path = socket_path(self.address)
        if path is not None:  # ZeroMQ leaves it; once closed, another's could stand there
            path.unlink(missing_ok=True)
        self._router.close(linger=LINGER_MS)
        self._router.context.term()
        self._woken.close()
        self._waker.close()

    def _receive(self, service: Service) -> None:
        for _ in range(RECEIVE_AT_ONCE):
            try:
                client, *frames = self._router.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            if client in self._peers:
                self._peers[client].silent = 0.0
            if len(frames) == 1:
                self._take(service, client, frames[0])
            else:
                service.refuse_frame(client, b"", f"a message of {len(frames)} frames; send one")

    def _take(self, service: Service, client: bytes, frame: bytes) -> None:
        try:
            message = decode_client(frame)
        except ProtocolError as error:
            logger.warning("client %s sent a bad frame: %s", client.hex(), error)
            service.refuse_frame(client, frame, str(error))
            return
        if isinstance(message, Hello):
            logger.info("client %s says hello: %s", client.hex(), message.client)
            self._peers.setdefault(client, Peer())
        elif isinstance(message, Ping) and client in self._peers:
            self._peers[client].seen = message.seen
        elif isinstance(message, Bye):
            self._peers.pop(client, None)
        service.handle(client, message)

    def _send(self, service: Service) -> None:
        while self._outbox:
            client, message = self._outbox.popleft()
            try:
                self._router.send_multipart((client, encode_runtime(message)), zmq.NOBLOCK)
            except zmq.ZMQError as error:
                if error.errno != zmq.EHOSTUNREACH:
                    raise
                self._drop(service, client, "its connection is gone")
                continue
            peer = self._peers.get(client)
            if peer is not None:
                peer.sent += 1
                self._check_backlog(service, client, peer)

    def _check_backlog(self, service: Service, client: bytes, peer: Peer) -> None:
        """End the requests of a client that leaves too much unread."""
        most = self._config.backlog_messages
        if peer.sent - peer.seen > most:
            reason = f"{peer.sent - peer.seen} messages were not read; at most {most}"
            if service.overload(client, reason):
                logger.warning("client %s does not keep up: %s", client.hex(), reason)

    def _beat(self, service: Service) -> None:
        """Give every client a sign of life, which also shows who has gone, and drop the silent."""
        for client, peer in list(self._peers.items()):
            peer.silent += self._config.heartbeat
            if peer.silent > self._config.peer_timeout:
                self._drop(service, client, f"it has been silent for {peer.silent:g} s")
            else:
                self.post(client, Pong())
        if self._parent_pid is not None and os.getppid() != self._parent_pid:
            logger.warning("the process that started this runtime is gone")
            self.stop()

    def _drop(self, service: Service, client: bytes, reason: str) -> None:
        if self._peers.pop(client, None) is not None:
            logger.info("client %s is dropped: %s", client.hex(), reason)
            service.forget(client)


def _bind(address: str) -> zmq.Socket[bytes]:
    claim(address)
    router = zmq.Context().socket(zmq.ROUTER)
    router.setsockopt(zmq.SNDHWM, 0)
    router.setsockopt(zmq.RCVHWM, 0)
    router.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
    router.setsockopt(zmq.ROUTER_MANDATORY, 1)
    try:
        router.bind(address)
    except zmq.ZMQError as error:
        router.close(linger=0)
        router.context.term()
        if error.errno == zmq.EADDRINUSE:
            raise RuntimeUnavailable(f"another process is listening at {address}") from None
        raise InvalidRequest(
            f"address={address}: {error}; write ipc://PATH or tcp://HOST:PORT"
        ) from None
    return router


def serve(config: RuntimeConfig, *, parent_pid: int | None = None) -> int:
    """Run a runtime until a signal ends it, or a bug of ours does; the exit status.

    Raises:
        BranchlineError: it cannot start; the message says why.
    """
    logging.basicConfig(level=_log_level())
    server = Server(config, parent_pid=parent_pid)  # first: a taken address needs no model
    try:
        from branchline.runtime.assembly import assemble

        parts = assemble(config, server.post, lambda _: server.stop(1))
        gc.freeze()  # what was loaded stays: a full collection need not walk it in mid-step
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: server.stop())
        signal.set_wakeup_fd(server.wake_fd, warn_on_full_buffer=False)
        print(parts.summary(server.address), flush=True)
        parts.loop.start()
        try:
            return server.run(parts.service)
        finally:
            signal.set_wakeup_fd(-1)
            parts.service.close()
            parts.loop.stop()
    finally:
        server.close()


def _log_level() -> str:
    level = os.environ.get("BRANCHLINE_LOG_LEVEL", "WARNING").upper()
    if level not in logging.getLevelNamesMapping():
        raise InvalidRequest(
            f"BRANCHLINE_LOG_LEVEL={level}: must be DEBUG, INFO, WARNING, ERROR or CRITICAL"
        )
    return level


def main(argv: Sequence[str] | None = None) -> int:
    """The process that `Runtime` starts: `python -P -m branchline.runtime.server --FIELD=VALUE`."""
    parser = argparse.ArgumentParser(prog="branchline.runtime.server")
    parser.add_argument("--parent-pid", type=int, help="end when this parent process is gone")
    add_config_flags(parser)
    arguments = parser.parse_args(argv)
    try:
        config = RuntimeConfig(**given_settings(arguments))
        return serve(config, parent_pid=arguments.parent_pid)
    except BranchlineError as error:
        print(f"branchline: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
