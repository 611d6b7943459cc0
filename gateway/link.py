"""The gateway's connection: there before its runtime is, and there when that is gone."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from branchline import eventloop
from branchline.client import connect
from branchline.errors import BranchlineError, RuntimeUnavailable
from branchline.paths import default_address

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from concurrent.futures import Future

    from branchline.client import Client
    from branchline.protocol import Generate, Inspection, ModelCard, Score, Scored, Update
    from branchline.runtime_info import RuntimeInfo

CONNECT_SECONDS = 2.0  # that one attempt to find the runtime may take
FIRST_PAUSE = 0.1  # seconds between attempts; each is twice the one before
LONGEST_PAUSE = 2.0

logger = logging.getLogger(__name__)


class RuntimeLink:
    """A `Backend` that answers at any time, if only that nobody is there.

    The first connection is looked for in the background until there is one. From then on the client
    finds its runtime again by itself. While there is none, every call raises RuntimeUnavailable at
    once. Like a client's, the coroutines run on the background loop.

    Args:
        address: where the runtime listens; by default where `branchline serve` does.
    """

    def __init__(self, address: str | None = None) -> None:
        self.address = address or default_address()
        self._client: Client | None = None
        self._reason = f"the runtime at {self.address} has not answered yet"
        self._search: Future[None] | None = None

    def start(self) -> None:
        """Begin to look for the runtime; from any thread."""
        self._search = eventloop.submit(self._find())

    def close(self) -> None:
        """Leave; from any thread but the background loop's."""
        if self._search is not None:
            self._search.cancel()
        if self._client is not None:
            self._client.close()

    @property
    def lost(self) -> str | None:
        """Why nobody answers at the moment; None while the runtime is there."""
        return self._reason if self._client is None else self._client.lost

    # ------------------------------------------------------------------ the Backend

    @property
    def card(self) -> ModelCard:
        """The model that answers: of the last runtime that did."""
        return self._connected.card

    def new_rid(self) -> str:
        """An rid that the connection has not used."""
        return self._connected.new_rid()

    def generate(self, request: Generate) -> AsyncIterator[Update]:
        """The updates of a request until every choice has finished; closing early aborts it."""
        return self._connected.generate(request)

    async def score(self, request: Score) -> Scored:
        """The log-likelihoods of the choices; cancelling aborts it."""
        return await self._connected.score(request)

    async def flush(self) -> int:
        """Drop every cached prefix that nobody holds; the number of pages that became free."""
        return await self._connected.flush()

    async def info(self) -> RuntimeInfo:
        """What the runtime is doing."""
        return await self._connected.info()

    async def inspect(self, nodes: int = 2000) -> Inspection:
        """A picture of the requests, and of the `nodes` largest nodes of the tree."""
        return await self._connected.inspect(nodes)

    @property
    def _connected(self) -> Client:
        if self._client is None:
            raise RuntimeUnavailable(self._reason)
        return self._client

    async def _find(self) -> None:
        pause = FIRST_PAUSE
        while self._client is None:
            try:
                self._client = await asyncio.to_thread(self._connect)  # it waits for this loop
            except BranchlineError as error:
                if str(error) != self._reason:
                    logger.warning("%s", error)
                self._reason = str(error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
        logger.info("connected to %s: %s", self.address, self._client.card.name)

    def _connect(self) -> Client:
        return connect(self.address, connect_timeout=CONNECT_SECONDS, reconnect_timeout=0.0)
