"""The server around the application: where it listens, how it ends, and that it does not delay."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

import pytest

from branchline import eventloop
from branchline.gateway.server import _listen, serving
from tests.gateway.http import send

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": scope["path"].encode()})


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_it_answers_while_the_block_runs(host: str) -> None:
    with serving(app, host) as server:
        assert send(server.url, "/there").text == "/there"
    assert server.ended.done()
    with pytest.raises(OSError):
        send(server.url, "/there")


def test_a_port_that_is_taken_is_told() -> None:
    with serving(app) as server:
        port = int(server.url.rpartition(":")[2])
        with pytest.raises(OSError, match=f"127.0.0.1:{port}"), serving(app, port=port):
            pass


def test_small_packets_leave_at_once() -> None:
    async def nodelay(listener: socket.socket) -> int:
        delays: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def accepted(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            accepted_socket = writer.get_extra_info("socket")
            delays.set_result(accepted_socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        async with await asyncio.start_server(accepted, sock=listener):
            _, writer = await asyncio.open_connection(*listener.getsockname())
            found = await delays
            writer.close()
            return found

    assert eventloop.run(nodelay(_listen("127.0.0.1", 0)))
