"""A connection to a runtime: requests out, answers sorted to whoever waits for them."""

from __future__ import annotations

import asyncio
import itertools
import logging
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from branchline import eventloop
from branchline.blocking import Blocking
from branchline.errors import (
    BranchlineError,
    InvalidRequest,
    ProtocolError,
    RequestAborted,
    RuntimeFailed,
    RuntimeUnavailable,
)
from branchline.paths import default_address
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
    Outputs,
    Score,
    Scored,
    Update,
)
from branchline.transport import ClientConfig, ZmqTransport

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from typing import Self

    from branchline.hints import Branch
    from branchline.protocol import ModelCard, RuntimeMessage
    from branchline.runtime_info import RuntimeInfo
    from branchline.transport import Transport

Question = Generate | Score | Flush | Info
Answer = Update | Scored | Flushed | InfoReply
A = TypeVar("A", Update, Scored, Flushed, InfoReply)

ERRORS: dict[str, type[BranchlineError]] = {
    "invalid": InvalidRequest,
    "aborted": RequestAborted,
    "overloaded": RuntimeUnavailable,
    "protocol": ProtocolError,
    "internal": RuntimeFailed,
}

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Exchange:
    """A request that waits for answers."""

    unfinished: int  # answers that end something: the choices of a generation, else one
    answers: asyncio.Queue[Answer | BranchlineError] = field(default_factory=asyncio.Queue)

    async def next(self, kind: type[A]) -> A:
        """The next answer; raises what ended the request instead."""
        answer = await self.answers.get()
        if isinstance(answer, BranchlineError):
            raise answer
        assert isinstance(answer, kind), f"{type(answer).__name__} where {kind.__name__} is due"
        return answer


class Client(Blocking):
    """A connected client, which is a `Backend`. Its coroutines run on the background loop.

    Raises:
        RuntimeUnavailable: nobody answered in time, or the runtime speaks another protocol version.
        InvalidRequest: the transport's address is malformed.
    """

    def __init__(self, transport: Transport, *, timeout: float) -> None:
        self._transport = transport
        self._pending: dict[str, _Exchange] = {}
        self._rids = itertools.count()
        self._end: RuntimeUnavailable | None = None  # why the connection has ended
        self._greeted: asyncio.Future[Greeting]
        self._card = eventloop.run(self._greet(timeout)).model

    # ------------------------------------------------------------------ the Backend

    @property
    def card(self) -> ModelCard:
        """The model that answers."""
        return self._card

    @property
    def address(self) -> str:
        """Where the runtime listens."""
        return self._transport.address

    def new_rid(self) -> str:
        """An rid that this connection has not used."""
        return str(next(self._rids))

    async def generate(self, request: Generate) -> AsyncIterator[Update]:
        """The updates until every choice has finished; closing the iterator aborts the request."""
        with self._ask(request, request.params.n) as exchange:
            finished = 0
            while finished < request.params.n:
                update = await exchange.next(Update)
                finished += update.finish is not None
                yield update

    async def score(self, request: Score) -> Scored:
        """The log-likelihoods of the choices; cancelling aborts it."""
        with self._ask(request) as exchange:
            return await exchange.next(Scored)

    async def flush(self) -> int:
        """Drop every cached prefix that nobody holds; the number of pages that became free."""
        with self._ask(Flush(self.new_rid())) as exchange:
            return (await exchange.next(Flushed)).pages

    async def info(self) -> RuntimeInfo:
        """What the runtime is doing."""
        with self._ask(Info(self.new_rid())) as exchange:
            return (await exchange.next(InfoReply)).info

    def ended(self, program: str, branch: Branch = ()) -> None:
        """A program, or a branch of it with those below, asks for nothing more; from any thread.

        Raises:
            InvalidRequest: the program or the branch breaks a rule.
        """
        try:
            message = Ended(program, branch)
        except ValueError as error:
            raise InvalidRequest(str(error)) from None
        eventloop.background_loop().call_soon_threadsafe(self._tell, message)

    # ------------------------------------------------------------------ the connection

    def close(self) -> None:
        """Leave; what is still pending raises RuntimeUnavailable. A second call does nothing."""
        eventloop.run(self._leave())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _greet(self, timeout: float) -> Greeting:
        self._greeted = asyncio.get_running_loop().create_future()
        self._transport.open(self._deliver, self._lose)
        self._transport.send(Hello(PROTOCOL_VERSION, client="python"))
        try:
            return await asyncio.wait_for(self._greeted, timeout)
        except TimeoutError:
            self._transport.close()
            raise RuntimeUnavailable(
                f"no runtime answered at {self.address} within {timeout:g} s; "
                "start one with `branchline serve`, or check the address"
            ) from None

    async def _leave(self) -> None:
        if self._end is None:
            self._transport.close()
            self._finish("this client has been closed")

    def _tell(self, message: Ended) -> None:
        if self._end is None:
            self._transport.send(message)

    @contextmanager
    def _ask(self, question: Question, unfinished: int = 1) -> Iterator[_Exchange]:
        """Send a request; on leaving, abort it if it is still alive."""
        if self._end is not None:
            raise RuntimeUnavailable(str(self._end))
        rid = question.rid
        if rid in self._pending:
            raise InvalidRequest(f"rid={rid!r}: a request with this rid is alive; use new_rid()")
        exchange = _Exchange(unfinished)
        try:
            self._transport.send(question)
        except ProtocolError as error:
            raise InvalidRequest(str(error)) from None
        self._pending[rid] = exchange
        try:
            yield exchange
        finally:
            if self._pending.get(rid) is exchange:
                del self._pending[rid]
                self._transport.send(Abort(rid))

    def _deliver(self, message: RuntimeMessage) -> None:
        """Hand a message to whoever waits for it; one that nobody waits for any more is dropped."""
        match message:
            case Outputs():
                for update in message.updates:
                    self._answer(update.rid, update, ends=update.finish is not None)
            case Scored() | Flushed() | InfoReply():
                self._answer(message.rid, message, ends=True)
            case Greeting() if not self._greeted.done():
                self._greeted.set_result(message)
            case Failure(rid=None):
                self._refused(message)
            case Failure():
                self._fail(message)
            case _:
                logger.warning("unexpected %s from %s", message.type, self.address)

    def _answer(self, rid: str, answer: Answer, *, ends: bool) -> None:
        exchange = self._pending.get(rid)
        if exchange is not None:
            exchange.answers.put_nowait(answer)
            exchange.unfinished -= ends
            if not exchange.unfinished:
                del self._pending[rid]

    def _fail(self, failure: Failure) -> None:
        assert failure.rid is not None
        exchange = self._pending.pop(failure.rid, None)
        if exchange is not None:
            exchange.answers.put_nowait(ERRORS[failure.code](failure.message))

    def _refused(self, failure: Failure) -> None:
        """A frame was refused, not a request: the runtime does not know this client (any more)."""
        if failure.code == "protocol":
            self._transport.close()
            self._lose(failure.message)
        else:
            logger.warning("%s: %s", self.address, failure.message)

    def _lose(self, reason: str) -> None:
        """The runtime is gone: whoever waits hears of it."""
        self._finish(f"lost the runtime at {self.address}: {reason}")

    def _finish(self, reason: str) -> None:
        self._end = RuntimeUnavailable(reason)
        if not self._greeted.done():
            self._greeted.set_exception(self._end)
        pending, self._pending = self._pending, {}
        for exchange in pending.values():
            exchange.answers.put_nowait(RuntimeUnavailable(reason))


def connect(address: str | None = None, **timeouts: float) -> Client:
    """Connect to a runtime.

    Args:
        address: what `branchline serve` prints; by default where it listens unless told otherwise.
        timeouts: fields of `ClientConfig`, in seconds: connect_timeout, peer_timeout, heartbeat.

    Raises:
        RuntimeUnavailable: nobody answered within connect_timeout.
        InvalidRequest: the address is malformed, or a timeout is out of range.
    """
    config = ClientConfig(**timeouts)
    transport = ZmqTransport(address or default_address(), config)
    return Client(transport, timeout=config.connect_timeout)
