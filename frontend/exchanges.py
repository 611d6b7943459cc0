"""What a client has asked and waits for: answers sorted by their rids."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TypeVar

from branchline.errors import (
    BranchlineError,
    InvalidRequest,
    ProtocolError,
    RequestAborted,
    RequestTimeout,
    RuntimeFailed,
    RuntimeOverloaded,
    RuntimeUnavailable,
)
from branchline.protocol import Failure, Flushed, InfoReply, Inspection, Scored, Update

Answer = Update | Scored | Flushed | InfoReply | Inspection
A = TypeVar("A", Update, Scored, Flushed, InfoReply, Inspection)

ERRORS: dict[str, type[BranchlineError]] = {
    "invalid": InvalidRequest,
    "aborted": RequestAborted,
    "timeout": RequestTimeout,
    "overloaded": RuntimeOverloaded,
    "protocol": ProtocolError,
    "internal": RuntimeFailed,
}


@dataclass(slots=True)
class Exchange:
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


class Exchanges:
    """The requests of one client that are alive. An answer that nobody waits for is dropped."""

    def __init__(self) -> None:
        self._pending: dict[str, Exchange] = {}

    def __contains__(self, rid: str) -> bool:
        return rid in self._pending

    def begin(self, rid: str, unfinished: int) -> Exchange:
        """A new request waits."""
        assert rid not in self._pending
        exchange = self._pending[rid] = Exchange(unfinished)
        return exchange

    def leave(self, rid: str, exchange: Exchange) -> bool:
        """Nobody waits for it any more; whether it was still alive."""
        alive = self._pending.get(rid) is exchange
        if alive:
            del self._pending[rid]
        return alive

    def answer(self, rid: str, answer: Answer, *, ends: bool) -> None:
        """Hand an answer on; the last that is due ends the request."""
        exchange = self._pending.get(rid)
        if exchange is not None:
            exchange.answers.put_nowait(answer)
            exchange.unfinished -= ends
            if not exchange.unfinished:
                del self._pending[rid]

    def fail(self, rid: str, failure: Failure) -> None:
        """The runtime has refused or ended a request."""
        exchange = self._pending.pop(rid, None)
        if exchange is not None:
            exchange.answers.put_nowait(ERRORS[failure.code](failure.message))

    def fail_all(self, reason: str) -> None:
        """The connection is gone, and with it whatever was pending."""
        pending, self._pending = self._pending, {}
        for exchange in pending.values():
            exchange.answers.put_nowait(RuntimeUnavailable(reason))
