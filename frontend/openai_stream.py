"""What an OpenAI-compatible endpoint is asked over HTTP: JSON in, JSON or a stream of events out.

A request takes no thread, and one that is left early is hung up on at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from branchline.errors import InvalidRequest, RuntimeFailed, RuntimeUnavailable
from branchline.http_exchange import FAILURES, Answer, exchange

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Mapping

FIRST_WAIT = 0.5  # seconds before the second attempt; doubled for each one after
LONGEST_WAIT = 60.0  # that an endpoint may ask for
ERROR_BYTES = 1 << 16  # of a refusal that are read
TRY_AGAIN = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where requests go, and how patiently.

    Raises:
        InvalidRequest: the address is not one of HTTP, or a header cannot be one.
    """

    base_url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout: float = 600.0  # of silence, in seconds
    attempts: int = 4  # in all, where the endpoint is busy or not reached

    def __post_init__(self) -> None:
        url = urlsplit(self.base_url)
        if url.scheme not in ("http", "https") or not url.hostname:
            raise InvalidRequest(f"base_url={self.base_url!r}: write http://… or https://…")
        for name, value in self.headers.items():
            if not (name + value).isprintable():
                raise InvalidRequest(f"the header {name!r} holds a character that cannot be sent")
        if self.attempts < 1 or not self.timeout > 0:
            raise InvalidRequest(
                f"attempts={self.attempts}, timeout={self.timeout}: must be at least 1, and above 0"
            )

    async def ask(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a request.

        Raises:
            InvalidRequest: the endpoint refuses it.
            RuntimeUnavailable: it is not reached or stays busy, after every attempt.
            RuntimeFailed: what it answers is not what the protocol has.
        """
        async with self._answer(path, body) as answer:
            return _parsed(b"".join([part async for part in answer.body()]))

    async def stream(
        self, path: str, body: Mapping[str, Any]
    ) -> AsyncGenerator[dict[str, Any], None]:
        """The events of a request's answer, until it says that it is done.

        Raises what `ask` does, and RuntimeUnavailable if it breaks off.
        """
        async with self._answer(path, body) as answer:
            async for data in _events(answer.body()):
                if data == b"[DONE]":
                    return
                event = _parsed(data)
                if event.get("error"):
                    raise RuntimeFailed(f"{self.base_url}: {_reason(event, data)}")
                yield event
        raise RuntimeUnavailable(f"{self.base_url} broke off in the middle of an answer")

    @asynccontextmanager
    async def _answer(self, path: str, body: Mapping[str, Any]) -> AsyncIterator[Answer]:
        """The first answer that is not about trying again; the connection ends with the block."""
        async with contextlib.AsyncExitStack() as connections:
            yield await self._persist(path, json.dumps(body).encode(), connections)

    async def _persist(
        self, path: str, body: bytes, connections: contextlib.AsyncExitStack
    ) -> Answer:
        for attempt in range(1, self.attempts + 1):
            wait = min(LONGEST_WAIT, FIRST_WAIT * 2 ** (attempt - 1)) * random.uniform(0.75, 1.0)
            try:
                answer = await connections.enter_async_context(
                    exchange(self.base_url, path, self.headers, body, self.timeout)
                )
            except FAILURES as error:
                failure = f"{type(error).__name__}: {error}"
            else:
                if answer.status == 200:
                    return answer
                failure = await self._refused(answer)
                wait = _asked_wait(answer.headers) or wait
            if attempt < self.attempts:
                await connections.aclose()
                await asyncio.sleep(wait)
        raise RuntimeUnavailable(
            f"{self.base_url} gave no answer in {self.attempts} attempts; the last: {failure}"
        )

    async def _refused(self, answer: Answer) -> str:
        """What a status says that may pass; InvalidRequest for one that will not."""
        text = b""
        async for part in answer.body():
            text += part
            if len(text) > ERROR_BYTES:
                break
        try:
            reason = _reason(json.loads(text), text)
        except ValueError:
            reason = text[:200].decode(errors="replace").strip()
        failure = f"status {answer.status}: {reason}"
        # An exhausted account answers like a busy endpoint does, but stays so.
        if answer.status not in TRY_AGAIN or "insufficient_quota" in reason:
            key = "; check api_key" if answer.status in (401, 403) else ""
            raise InvalidRequest(f"{self.base_url} refuses the request with {failure}{key}")
        return failure


async def _events(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The data of server-sent events, one at a time."""
    rest = b""
    async for part in parts:
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip()


def _parsed(data: bytes) -> dict[str, Any]:
    try:
        parsed = json.loads(data)
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict):
        raise RuntimeFailed(f"the endpoint answers what is no JSON object: {data[:200]!r}")
    return parsed


def _reason(answer: Any, text: bytes) -> str:
    """What an error's body says, in the shapes that endpoints give it."""
    error = answer.get("error", answer) if isinstance(answer, dict) else answer
    if isinstance(error, dict) and (error.get("message") or error.get("detail")):
        code = f" ({error['code']})" if error.get("code") else ""
        return f"{error.get('message') or error.get('detail')}{code}"
    return str(error) if error else text[:200].decode(errors="replace")


def _asked_wait(headers: Mapping[str, str]) -> float | None:
    """The seconds that `Retry-After` asks for; None where it does not, or gives a date."""
    try:
        return min(LONGEST_WAIT, max(0.0, float(headers.get("retry-after", ""))))
    except ValueError:
        return None
