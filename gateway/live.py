"""The picture that the page draws: asked of the runtime once a second, however many watch."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Protocol

from branchline.errors import BranchlineError

if TYPE_CHECKING:
    from branchline.protocol import Inspection
    from branchline.runtime_info import RuntimeInfo

NODES = 2000  # the largest of the tree
PERIOD = 1.0  # seconds that a picture is good for
PATIENCE = 5.0  # seconds until a runtime that does not answer counts as away
COLUMNS = ("id", "parent", "start", "length", "subtree", "users", "idle", "text", "salted")


class Source(Protocol):
    """Whoever knows what the runtime is doing. Both raise BranchlineError while it is away."""

    async def info(self) -> RuntimeInfo:
        """Its counters."""

    async def inspect(self, nodes: int) -> Inspection:
        """Its tree and its requests."""


class Live:
    """Pictures as JSON, all viewers' at the cost of one."""

    def __init__(self, source: Source, period: float = PERIOD) -> None:
        self._source = source
        self._period = period
        self._lock = asyncio.Lock()
        self._picture = b""
        self._taken = float("-inf")

    async def picture(self) -> bytes:
        """The newest picture, at most `period` old; one that says why while there is none."""
        async with self._lock:
            if time.monotonic() - self._taken >= self._period:
                self._picture = await self._take()
                self._taken = time.monotonic()
            return self._picture

    async def _take(self) -> bytes:
        try:
            seen = await asyncio.wait_for(self._source.inspect(NODES), PATIENCE)
        except BranchlineError as error:
            return _json({"up": False, "reason": str(error)})
        except TimeoutError:
            return _json({"up": False, "reason": f"the runtime was silent for {PATIENCE:g} s"})
        return await asyncio.to_thread(encoded, seen)


def encoded(seen: Inspection) -> bytes:
    """An inspection as the page reads it: nodes as columns, which is half the size."""
    return _json(
        {
            "up": True,
            "info": asdict(seen.info),
            "nodes": {name: [getattr(node, name) for node in seen.nodes] for name in COLUMNS},
            "total_nodes": seen.total_nodes,
            "requests": [asdict(request) for request in seen.requests],
        }
    )


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
