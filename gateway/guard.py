"""What a request meets before its route: the API key, and the size of its body."""

from __future__ import annotations

import hashlib
import hmac
from typing import TYPE_CHECKING

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException

from branchline.gateway.errors import ApiError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from branchline.gateway.settings import Settings

# What tells nothing of anybody: whether the gateway is up, and the page without its data.
OPEN_PATHS = frozenset({"/", "/health"})
OPEN_FOLDER = "/static/"


class Guard:
    """Middleware: 401 without one of the keys, 413 for a body that is too large."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._keys = [_digest(key.encode()) for key in settings.api_keys]
        self._most = settings.max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request pass, as ASGI wants it, or answer it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        try:
            self._check_key(scope["path"], headers.get("authorization", ""))
            self._check_size(headers.get("content-length", ""))
        except ApiError as error:
            await error.response()(scope, receive, send)
            return
        await self._app(scope, self._counted(receive), send)

    def _check_key(self, path: str, authorization: str) -> None:
        if not self._keys or path in OPEN_PATHS or path.startswith(OPEN_FOLDER):
            return
        scheme, _, key = authorization.partition(" ")
        given = _digest(key.strip().encode("latin-1"))  # the bytes, as headers are read
        # Every key is compared, each in constant time: how long it takes tells nothing.
        matches = [hmac.compare_digest(given, known) for known in self._keys]
        if scheme.lower() != "bearer" or not any(matches):
            what = "no API key" if not authorization else "this API key is not known"
            raise ApiError(
                401,
                f"{what}: send `Authorization: Bearer KEY` with one that the server was given",
                kind="authentication_error",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )

    def _check_size(self, length: str) -> None:
        if length.isdecimal() and int(length[:20]) > self._most:
            raise ApiError(413, self._too_large, code="body_too_large")

    @property
    def _too_large(self) -> str:
        return f"the body is too large: at most {self._most} bytes"

    def _counted(self, receive: Receive) -> Receive:
        """The same, but a body that does not say how long it is may not grow without end."""
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self._most:
                raise HTTPException(413, self._too_large)
            return message

        return counted


def _digest(key: bytes) -> bytes:
    """Of one length for all keys, so that a comparison does not tell how long they are."""
    return hashlib.sha256(key).digest()
