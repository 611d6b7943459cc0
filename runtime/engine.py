"""The runtime in the caller's own process: the same service and loop, no socket."""

from __future__ import annotations

import asyncio
import atexit
from typing import TYPE_CHECKING, Any

from branchline.client import Client
from branchline.errors import InvalidRequest
from branchline.protocol import Bye
from branchline.runtime.assembly import assemble
from branchline.runtime.config import RuntimeConfig

if TYPE_CHECKING:
    from collections.abc import Callable

    from branchline.protocol import ClientMessage, RuntimeMessage
    from branchline.runtime.service import Service

CLIENT = b"in this process"  # the only one
TIMEOUT = 10.0  # seconds, for the greeting of a loop that is running


class Engine(Client):
    """A runtime in this process, and the client connected to it.

    ::

        with Engine("smollm2") as engine:
            [completion] = engine.generate_text("The capital of France is")

    Args:
        model: what to serve: see `RuntimeConfig.model`.
        settings: fields of `RuntimeConfig`, by name.

    Raises:
        ModelError: the model cannot be loaded.
        InvalidRequest: a setting does not fit the model or the memory.
    """

    def __init__(self, model: str = "smollm2", **settings: Any) -> None:
        if settings.get("address") is not None:
            raise InvalidRequest("an Engine has no address; `Runtime(address=...)` listens at one")
        wire = LocalTransport()
        parts = assemble(RuntimeConfig(model=model, **settings), wire.post, wire.fail)
        wire.service = parts.service
        self._service = parts.service
        self._loop = parts.loop
        self._loop.start()
        atexit.register(self.close)
        try:
            super().__init__(wire, timeout=TIMEOUT)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the loop. A second call does nothing."""
        atexit.unregister(self.close)
        super().close()
        self._service.close()
        self._loop.stop()


class LocalTransport:
    """A transport within the process: messages are handed over as they are.

    The background loop plays the I/O thread.
    """

    service: Service

    def __init__(self) -> None:
        self.address = "this process"
        self._events: asyncio.AbstractEventLoop | None = None  # None: not open yet, or closed
        self._deliver: Callable[[RuntimeMessage], None]
        self._lose: Callable[[str], None]

    def open(self, deliver: Callable[[RuntimeMessage], None], lose: Callable[[str], None]) -> None:
        """Start to deliver."""
        self._deliver, self._lose = deliver, lose
        self._events = asyncio.get_running_loop()

    def send(self, message: ClientMessage) -> None:
        """Let the service handle a message."""
        self.service.handle(CLIENT, message)

    def close(self) -> None:
        """End what is running; nothing is delivered any more."""
        self.send(Bye())
        self._events = None

    def post(self, _client: bytes, message: RuntimeMessage) -> None:
        """Deliver a message of the service; from any thread."""
        events = self._events
        if events is not None:
            events.call_soon_threadsafe(self._deliver, message)

    def fail(self, error: BaseException) -> None:
        """The loop has met a bug; from the engine thread."""
        events = self._events
        if events is not None:
            reason = f"its loop failed: {type(error).__name__}: {error}"
            events.call_soon_threadsafe(self._lose, reason)
