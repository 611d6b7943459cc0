"""A client of `/v1/completions`, which every peer serves, on plain asyncio streams.

It shares the cores with the server that it measures, so it does little: one connection a request,
no HTTP library.
"""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

from measure import Timings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

MODEL = "m"
HOST = "127.0.0.1"


class Completions:
    """Sends prompts to a server, greedy and without end, and times the answers."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.timings = Timings()
        self.prompt_tokens = 0
        self.cached_tokens = 0  # of those, which the server found in its cache

    async def complete(self, prompt: str, max_tokens: int) -> str:
        """The text that follows a prompt."""
        request = {
            "model": MODEL,
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        start = time.perf_counter()
        first, text, tokens = 0.0, "", 0
        async for event in post(self._port, "/v1/completions", request):
            for choice in event["choices"]:
                first = first or time.perf_counter() - start
                text += choice["text"]
            if event.get("usage"):
                tokens = event["usage"]["completion_tokens"]
                self.prompt_tokens += event["usage"]["prompt_tokens"]
                self.cached_tokens += event["usage"]["prompt_tokens_details"]["cached_tokens"]
        if tokens != max_tokens:
            raise RuntimeError(f"{tokens} tokens came where {max_tokens} were asked for")
        self.timings.add(first, time.perf_counter() - start, tokens)
        return text


async def post(port: int, path: str, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    """The server-sent events that answer a request.

    Raises:
        RuntimeError: the server refused it.
    """
    reader, writer = await asyncio.open_connection(HOST, port)
    with closing(writer):
        content = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: {HOST}:{port}\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        )
        writer.write(head.encode() + content)
        status = (await reader.readline()).decode().split(maxsplit=1)[1].strip()
        headers = (await reader.readuntil(b"\r\n\r\n")).lower()
        if not status.startswith("200"):
            raise RuntimeError(f"{path}: {status}: {(await reader.read()).decode()}")
        pieces = _chunks(reader) if b"transfer-encoding: chunked" in headers else _pieces(reader)
        async for event in events(pieces):
            yield event


async def events(pieces: AsyncIterator[bytes]) -> AsyncIterator[dict[str, Any]]:
    """The JSON of each `data:` line in a body that comes in pieces, cut anywhere."""
    rest = b""
    async for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            data = line.removeprefix(b"data:").strip()
            if line.startswith(b"data:") and data != b"[DONE]":
                yield json.loads(data)


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """A body in chunked transfer coding."""
    while size := int(await reader.readline(), 16):
        yield await reader.readexactly(size)
        await reader.readexactly(2)  # the line end that closes a chunk


async def _pieces(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """A body that ends with the connection."""
    while piece := await reader.read(2**16):
        yield piece
