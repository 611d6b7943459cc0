"""A client of a runtime: what `connect` returns, and `Runtime` and `Engine` are."""

from __future__ import annotations

import itertools
from functools import partial
from typing import TYPE_CHECKING

from branchline import eventloop
from branchline.blocking import Blocking
from branchline.connection import Connection
from branchline.errors import InvalidRequest
from branchline.paths import default_address
from branchline.protocol import (
    Ended,
    Flush,
    Flushed,
    Info,
    InfoReply,
    Inspect,
    Inspection,
    Scored,
    Update,
)
from branchline.transport import ClientConfig, ZmqTransport

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from typing import Self

    from branchline.hints import Branch
    from branchline.protocol import Generate, ModelCard, Score
    from branchline.runtime_info import RuntimeInfo
    from branchline.transport import Transport


class Client(Blocking):
    """A connected client, which is a `Backend`. Its coroutines run on the background loop.

    Args:
        transport: the connection to the runtime.
        timeout: seconds until the runtime must have answered for the first time.
        again: makes a new transport to the same address, when the runtime was lost; None: a loss
            is final.
        patience: seconds that a request waits for a lost runtime before it fails.

    Raises:
        RuntimeUnavailable: nobody answered in time, or the runtime speaks another protocol version.
        InvalidRequest: the transport's address is malformed.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        timeout: float,
        again: Callable[[], Transport] | None = None,
        patience: float = 0.0,
    ) -> None:
        self._connection = Connection(transport, again, patience)
        self._rids = itertools.count()
        eventloop.run(self._connection.open(timeout))

    # ------------------------------------------------------------------ the Backend

    @property
    def card(self) -> ModelCard:
        """The model that answers: of the last runtime that did."""
        return self._connection.card

    @property
    def address(self) -> str:
        """Where the runtime listens."""
        return self._connection.address

    @property
    def lost(self) -> str | None:
        """Why nobody answers at the moment; None while the runtime is there."""
        return self._connection.lost

    def new_rid(self) -> str:
        """An rid that this connection has not used."""
        return str(next(self._rids))

    async def generate(self, request: Generate) -> AsyncIterator[Update]:
        """The updates until every choice has finished; closing the iterator aborts the request."""
        async with self._connection.ask(request, request.params.n) as exchange:
            finished = 0
            while finished < request.params.n:
                update = await exchange.next(Update)
                finished += update.finish is not None
                yield update

    async def score(self, request: Score) -> Scored:
        """The log-likelihoods of the choices; cancelling aborts it."""
        async with self._connection.ask(request) as exchange:
            return await exchange.next(Scored)

    async def flush(self) -> int:
        """Drop every cached prefix that nobody holds; the number of pages that became free."""
        async with self._connection.ask(Flush(self.new_rid())) as exchange:
            return (await exchange.next(Flushed)).pages

    async def info(self) -> RuntimeInfo:
        """What the runtime is doing."""
        async with self._connection.ask(Info(self.new_rid())) as exchange:
            return (await exchange.next(InfoReply)).info

    async def inspect(self, nodes: int = 2000) -> Inspection:
        """A picture of the requests, and of the `nodes` largest nodes of the tree."""
        async with self._connection.ask(Inspect(self.new_rid(), nodes)) as exchange:
            return await exchange.next(Inspection)

    def ended(self, program: str, branch: Branch = ()) -> None:
        """A program, or a branch of it with those below, asks for nothing more; from any thread.

        Raises:
            InvalidRequest: the program or the branch breaks a rule.
        """
        try:
            message = Ended(program, branch)
        except ValueError as error:
            raise InvalidRequest(str(error)) from None
        eventloop.background_loop().call_soon_threadsafe(self._connection.tell, message)

    # ------------------------------------------------------------------ the end

    def close(self) -> None:
        """Leave; what is still pending raises RuntimeUnavailable. A second call does nothing."""
        eventloop.run(self._connection.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def connect(address: str | None = None, **timeouts: float) -> Client:
    """Connect to a runtime. Should it be lost, the client finds it again when it is back.

    Args:
        address: what `branchline serve` prints; by default where it listens unless told otherwise.
        timeouts: fields of `ClientConfig`, in seconds: connect_timeout, reconnect_timeout,
            peer_timeout, heartbeat.

    Raises:
        RuntimeUnavailable: nobody answered within connect_timeout.
        InvalidRequest: the address is malformed, or a timeout is out of range.
    """
    config = ClientConfig(**timeouts)
    transport = partial(ZmqTransport, address or default_address(), config)
    return Client(
        transport(),
        timeout=config.connect_timeout,
        again=transport,
        patience=config.reconnect_timeout,
    )
