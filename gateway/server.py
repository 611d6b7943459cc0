"""A server around the application, on the loop that the backend's coroutines run on."""

from __future__ import annotations

import socket
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import uvicorn

from branchline import eventloop

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

    from starlette.types import ASGIApp

BACKLOG = 2048  # connections that may wait to be accepted
FAREWELL_SECONDS = 3  # that open answers have left when the server is to end


@dataclass(frozen=True, slots=True)
class Serving:
    """A server that runs."""

    url: str
    ended: Future[None]
    _server: uvicorn.Server

    def stop(self) -> None:
        """Take no more; what is open has a moment to end. From any thread or signal handler."""
        self._server.should_exit = True


@contextmanager
def serving(app: ASGIApp, host: str = "127.0.0.1", port: int = 0) -> Iterator[Serving]:
    """Serve an application on the background loop while the block runs.

    Args:
        app: what answers.
        host: an address of this machine.
        port: 0 takes a free one.

    Raises:
        OSError: the address cannot be listened at.
    """
    listener = _listen(host, port)
    config = uvicorn.Config(
        app,
        lifespan="off",
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=FAREWELL_SECONDS,
    )
    server = uvicorn.Server(config)
    ended = eventloop.submit(server.serve(sockets=[listener]))
    bound = listener.getsockname()[1]
    shown = f"[{host}]" if ":" in host else host
    running = Serving(f"http://{shown}:{bound}", ended, server)
    try:
        yield running
    finally:
        running.stop()
        ended.result()
        listener.close()


def _listen(host: str, port: int) -> socket.socket:
    """A socket that takes connections from here on, before anything answers them.

    It names its protocol: asyncio turns off delays (Nagle's) only where a socket does, and a token
    would wait for the client's acknowledgement of the one before, 40 ms.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise OSError(f"{host}:{port} cannot be listened at: {error}") from error
    return listener
