"""What the gateway counts of its own: requests by route and code, their time, open streams."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

NOWHERE = "none"  # the route of a path that is not served, so that paths do not become labels
METHODS = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}
BROKEN = "499"  # the code of a request whose answer never began: its client went away
SECONDS = (0.005, 0.02, 0.1, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)


class Traffic:
    """The gateway's own metrics, and the middleware that counts them."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "branchline_http_requests",
            "HTTP requests that were answered.",
            ["method", "route", "code"],
            registry=self.registry,
        )
        self._seconds = Histogram(
            "branchline_http_request_seconds",
            "From a request's head to the end of its answer.",
            ["route"],
            buckets=SECONDS,
            registry=self.registry,
        )
        self._open = Gauge(
            "branchline_http_open_requests", "Being answered.", registry=self.registry
        )
        self._streams = Gauge(
            "branchline_http_open_streams",
            "Of those, streams of events.",
            registry=self.registry,
        )

    def watch(self, app: ASGIApp) -> ASGIApp:
        """The same application, counted."""

        async def watched(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            answer = _Answer(send, self._streams)
            began = time.perf_counter()
            self._open.inc()
            try:
                await app(scope, receive, answer.send)
            except Exception:
                answer.fail()  # who is outside of this makes an answer of it
                raise
            finally:
                self._open.dec()
                answer.end()
                self._count(scope, answer.code, time.perf_counter() - began)

        return watched

    def _count(self, scope: Scope, code: str, seconds: float) -> None:
        method = scope["method"] if scope["method"] in METHODS else "other"
        route = getattr(scope.get("route"), "path", NOWHERE)  # the router leaves it in the scope
        self._requests.labels(method, route, code).inc()
        self._seconds.labels(route).observe(seconds)


class _Answer:
    """Looks at an answer as it is sent."""

    def __init__(self, send: Send, streams: Gauge) -> None:
        self.code = BROKEN
        self._send = send
        self._streams = streams
        self._is_stream = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.code = str(message["status"])
            self._is_stream = any(
                name.lower() == b"content-type" and value.startswith(b"text/event-stream")
                for name, value in message["headers"]
            )
            self._streams.inc(self._is_stream)
        await self._send(message)

    def fail(self) -> None:
        """A bug was met; what has begun keeps its code."""
        self.code = "500" if self.code == BROKEN else self.code

    def end(self) -> None:
        self._streams.dec(self._is_stream)
