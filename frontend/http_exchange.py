"""One HTTP/1.1 request on a connection of its own, on the event loop, with the standard library."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from branchline.errors import RuntimeUnavailable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

CONNECT_TIMEOUT = 30.0  # seconds
LINE_BYTES = 1 << 20  # of a header, or of the size of a chunk
# What a connection that fails, or that does not speak HTTP, raises.
FAILURES = (OSError, EOFError, ValueError)


@dataclass(slots=True)
class Answer:
    """The status and the headers; the body is still to come."""

    status: int
    headers: dict[str, str]  # names in lower case
    reader: asyncio.StreamReader
    timeout: float

    async def body(self) -> AsyncIterator[bytes]:
        """Its parts as they come. Raises RuntimeUnavailable if it breaks off or falls silent."""
        try:
            async for part in self._parts():
                yield part
        except FAILURES as error:
            raise RuntimeUnavailable(
                f"the connection broke off: {type(error).__name__}: {error}"
            ) from None

    async def _parts(self) -> AsyncIterator[bytes]:
        if self.headers.get("transfer-encoding", "").lower() == "chunked":
            while size := int((await _line(self.reader, self.timeout)).split(b";")[0], 16):
                async for part in self._some(size):
                    yield part
                await _line(self.reader, self.timeout)
        elif "content-length" in self.headers:
            async for part in self._some(int(self.headers["content-length"])):
                yield part
        else:
            while part := await self._read(LINE_BYTES):
                yield part

    async def _some(self, count: int) -> AsyncIterator[bytes]:
        while count > 0:
            part = await self._read(count)
            if not part:
                raise EOFError(f"{count} bytes are missing")
            count -= len(part)
            yield part

    async def _read(self, most: int) -> bytes:
        async with asyncio.timeout(self.timeout):
            return await self.reader.read(most)


@asynccontextmanager
async def exchange(
    base_url: str, path: str, headers: Mapping[str, str], body: bytes, timeout: float
) -> AsyncIterator[Answer]:
    """Send a request; its answer up to the headers. The connection ends with the block."""
    url = urlsplit(base_url)
    assert url.hostname is not None, "checked"
    secure = url.scheme == "https"
    async with asyncio.timeout(CONNECT_TIMEOUT):
        reader, writer = await asyncio.open_connection(
            url.hostname,
            url.port or (443 if secure else 80),
            ssl=ssl.create_default_context() if secure else None,
            limit=LINE_BYTES,
        )
    try:
        target = url.path.rstrip("/") + path + (f"?{url.query}" if url.query else "")
        all_headers = {
            "Host": url.netloc.rpartition("@")[2],
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            "Accept-Encoding": "identity",
            "Connection": "close",
            **headers,
        }
        lines = [f"{name}: {value}" for name, value in all_headers.items()]
        head = "\r\n".join([f"POST {target} HTTP/1.1", *lines, "", ""])
        writer.write(head.encode() + body)
        await writer.drain()
        yield await _head(reader, timeout)
    finally:
        writer.close()  # not waited for: a TLS peer may take its time to say goodbye


async def _head(reader: asyncio.StreamReader, timeout: float) -> Answer:
    """The answer's status and headers. Raises EOFError for what is not HTTP."""
    words = (await _line(reader, timeout)).split(maxsplit=2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit():
        raise EOFError("what answers there does not speak HTTP")
    headers = {}
    while line := await _line(reader, timeout):
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.strip().lower()] = value.strip()
    return Answer(int(words[1]), headers, reader, timeout)


async def _line(reader: asyncio.StreamReader, timeout: float) -> bytes:
    async with asyncio.timeout(timeout):
        line = await reader.readline()
    if not line.endswith(b"\n"):
        raise EOFError("the connection was closed")
    return line.rstrip(b"\r\n")
