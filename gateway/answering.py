"""An answer, whole or as a stream of server-sent events, in whatever shape its route writes."""

from __future__ import annotations

import json
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any, Protocol

from starlette.requests import ClientDisconnect
from starlette.responses import Response

from branchline.errors import BranchlineError
from branchline.gateway.asking import Gate, streamed, while_connected, whole
from branchline.gateway.errors import as_api_error, json_text

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from fastapi import Request
    from starlette.types import Receive, Scope, Send

    from branchline.backend import Backend
    from branchline.protocol import Generate, Update

DONE = "data: [DONE]\n\n"


class Writer(Protocol):
    """Writes what the runtime says in the shape of one route."""

    def events(self, choice: int, update: Update) -> str:
        """The events that tell what is new in a choice; empty: nothing to tell."""

    def end(self) -> str:
        """The events after the last choice has finished."""

    def whole(self, choices: Sequence[Update]) -> Any:
        """The answer that is not streamed, as JSON has it."""


class EventStream(Response):
    """Server-sent events. What makes them is closed with the response, or when the client goes."""

    media_type = "text/event-stream"

    def __init__(self, first: str, rest: AsyncGenerator[str, None]) -> None:
        # A proxy that buffers would make one answer of many parts.
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]  # it is not known
        self._first = first
        self._rest = rest

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        """Send them, as ASGI wants it."""
        async with aclosing(self._rest):
            with suppress(ClientDisconnect):  # then there is nobody to tell
                await while_connected(receive, self._send(send))

    async def _send(self, send: Send) -> None:
        head = {"status": self.status_code, "headers": self.raw_headers}
        await send({"type": "http.response.start", **head})
        await send(_body(self._first))
        async for text in self._rest:
            await send(_body(text))
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def answer(
    http: Request,
    backend: Backend,
    gate: Gate,
    requests: Sequence[Generate],
    writer: Writer,
) -> Response:
    """Ask the runtime; the answer streams if the requests do.

    A stream begins with its first event, so what is refused is refused with a status of its own.
    """
    if requests[0].stream:
        events = _events(backend, gate, requests, writer)
        return EventStream(await while_connected(http.receive, _first(events)), events)
    with gate.entered(len(requests)):
        choices = await while_connected(http.receive, whole(backend, requests))
    return json_text(json.dumps(writer.whole(choices)))


async def _first(events: AsyncGenerator[str, None]) -> str:
    return await anext(events)


async def _events(
    backend: Backend, gate: Gate, requests: Sequence[Generate], writer: Writer
) -> AsyncGenerator[str, None]:
    begun = False
    try:
        with gate.entered(len(requests)):
            async with aclosing(streamed(backend, requests)) as updates:
                async for choice, update in updates:
                    if events := writer.events(choice, update):
                        yield events
                        begun = True
        yield writer.end()
    except BranchlineError as error:
        if not begun:
            raise
        yield f"data: {as_api_error(error).text}\n\n"  # and no [DONE]: it is not


def _body(text: str) -> dict[str, Any]:
    return {"type": "http.response.body", "body": text.encode(), "more_body": True}
