"""One client's connection to a runtime: made, lost, found again."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from branchline.errors import InvalidRequest, ProtocolError, RuntimeUnavailable
from branchline.exchanges import Exchanges
from branchline.protocol import (
    PROTOCOL_VERSION,
    Abort,
    Ended,
    Failure,
    Flush,
    Flushed,
    Generate,
    Greeting,
    Hello,
    Info,
    InfoReply,
    Inspect,
    Inspection,
    Outputs,
    Score,
    Scored,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from branchline.exchanges import Exchange
    from branchline.protocol import ModelCard, RuntimeMessage
    from branchline.transport import Transport

Question = Generate | Score | Flush | Info | Inspect

SEARCH_SECONDS = 0.05  # from a loss to the first attempt; each later wait is twice the one before
SEARCH_MOST = 2.0

logger = logging.getLogger(__name__)


class Connection:
    """Asks a runtime, on the background loop, and knows whether it is there.

    When the runtime is lost, what is pending fails, and so does what is asked while nobody is
    there. A connection that can be made `again` looks for the runtime until it is closed: what is
    asked after the runtime's return is answered as if nothing had been.

    Args:
        transport: carries the messages.
        again: makes a new transport to the same address; None: a loss is final.
        patience: seconds that a request waits for a lost runtime before it fails.
    """

    card: ModelCard  # of the last runtime that greeted

    def __init__(
        self,
        transport: Transport,
        again: Callable[[], Transport] | None = None,
        patience: float = 0.0,
    ) -> None:
        self._transport = transport
        self._again = again
        self._patience = patience
        self._exchanges = Exchanges()
        self._greeted: asyncio.Future[None]
        self._search: asyncio.Task[None] | None = None  # for a runtime that was lost
        self._end: RuntimeUnavailable | None = None  # why nobody is there

    @property
    def address(self) -> str:
        """Where the runtime listens."""
        return self._transport.address

    @property
    def lost(self) -> str | None:
        """Why nobody answers at the moment; None while the runtime is there. From any thread."""
        end = self._end
        return None if end is None else str(end)

    async def open(self, timeout: float | None) -> None:
        """Say hello and wait for the greeting.

        Raises:
            RuntimeUnavailable: it did not come in time, or something else did.
            InvalidRequest: the transport's address is malformed.
        """
        self._greeted = asyncio.get_running_loop().create_future()
        self._transport.open(self._deliver, self._lose)
        self._transport.send(Hello(PROTOCOL_VERSION, client="python"))
        try:
            await asyncio.wait_for(self._greeted, timeout)
        except TimeoutError:
            self._transport.close()
            raise RuntimeUnavailable(
                f"no runtime answered at {self.address} within {timeout:g} s; "
                "start one with `branchline serve`, or check the address"
            ) from None

    async def close(self) -> None:
        """Leave; what is pending fails. A second call does nothing."""
        if self._end is None or self._search is not None:
            if self._search is not None:
                self._search.cancel()
                self._search = None
            self._transport.close()
            self._finish("this client has been closed")

    @asynccontextmanager
    async def ask(self, question: Question, unfinished: int = 1) -> AsyncIterator[Exchange]:
        """Send a request; on leaving, abort it if it is still alive."""
        if self._search is not None and self._patience:
            await asyncio.wait({self._search}, timeout=self._patience)
        if self._end is not None:
            raise RuntimeUnavailable(str(self._end))
        rid = question.rid
        if rid in self._exchanges:
            raise InvalidRequest(f"rid={rid!r}: a request with this rid is alive; use new_rid()")
        try:
            self._transport.send(question)
        except ProtocolError as error:
            raise InvalidRequest(str(error)) from None
        exchange = self._exchanges.begin(rid, unfinished)
        try:
            yield exchange
        finally:
            if self._exchanges.leave(rid, exchange):
                self._transport.send(Abort(rid))

    def tell(self, message: Ended) -> None:
        """Send what nobody answers; nothing while nobody is there."""
        if self._end is None:
            self._transport.send(message)

    # ------------------------------------------------------------------ what comes in

    def _deliver(self, message: RuntimeMessage) -> None:
        match message:
            case Outputs():
                for update in message.updates:
                    self._exchanges.answer(update.rid, update, ends=update.finish is not None)
            case Scored() | Flushed() | InfoReply() | Inspection():
                self._exchanges.answer(message.rid, message, ends=True)
            case Greeting():
                self._welcome(message)
            case Failure(rid=None):
                self._refused(message)
            case Failure(rid=str(rid)):
                self._exchanges.fail(rid, message)
            case _:
                logger.warning("unexpected %s from %s", message.type, self.address)

    def _welcome(self, greeting: Greeting) -> None:
        self.card = greeting.model
        if not self._greeted.done():  # a second answers a hello that was said twice
            self._end = None
            self._greeted.set_result(None)

    def _refused(self, failure: Failure) -> None:
        """A frame was refused, not a request: the runtime does not know this client (any more)."""
        if failure.code == "protocol":
            self._transport.close()
            self._lose(failure.message)
        else:
            logger.warning("%s: %s", self.address, failure.message)

    # ------------------------------------------------------------------ loss and return

    def _lose(self, reason: str) -> None:
        """The runtime is gone: whoever waits hears of it, and the search begins."""
        was_there = self._greeted.done()
        self._finish(f"lost the runtime at {self.address}: {reason}")
        if was_there and self._search is None and self._again is not None:
            work = self._look_for_runtime(self._again)
            self._search = asyncio.get_running_loop().create_task(work)

    def _finish(self, reason: str) -> None:
        self._end = RuntimeUnavailable(reason)
        if not self._greeted.done():
            self._greeted.set_exception(self._end)
        self._exchanges.fail_all(reason)

    async def _look_for_runtime(self, again: Callable[[], Transport]) -> None:
        """Connect anew until a runtime greets, and has not been lost again meanwhile."""
        pause = SEARCH_SECONDS
        while self._end is not None:
            await asyncio.sleep(pause)
            pause = min(2 * pause, SEARCH_MOST)
            self._transport = again()
            try:
                await self.open(None)
            except RuntimeUnavailable as error:
                self._end = error
        logger.info("the runtime at %s is back", self.address)
        self._search = None
