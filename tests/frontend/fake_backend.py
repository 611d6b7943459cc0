"""A backend without a model: a token is a character, what it says a function of the prompt."""

from __future__ import annotations

import asyncio
import itertools
import threading
from typing import TYPE_CHECKING

from branchline import eventloop
from branchline.protocol import (
    ChatTemplate,
    ChoiceScore,
    Finish,
    Generate,
    ModelCard,
    RuntimeInfo,
    Score,
    Scored,
    TokenLogprob,
    Update,
    Usage,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from branchline.protocol import Prompt

Reply = str | Exception

CHATML = ChatTemplate(
    prefix={role: f"<|im_start|>{role}\n" for role in ("system", "user", "assistant")},
    suffix=dict.fromkeys(("system", "user", "assistant"), "<|im_end|>\n"),
    default_system="<|im_start|>system\nBe kind.<|im_end|>\n",
)


def text_of(prompt: Prompt) -> str:
    return "".join(
        "".join(map(chr, content)) if kind == "tokens" else content for kind, content in prompt
    )


class FakeBackend:
    """Says `reply(text)`, one character a token, or raises it; scores choices by a table.

    Attributes:
        requests: every request, in the order of arrival.
        gate: where set, requests wait until `open_gate`.
        most_alive: the most requests that were alive at a time.
    """

    def __init__(
        self,
        reply: Callable[[str], Reply] | Reply = "ok",
        *,
        scores: Mapping[str, ChoiceScore | Exception] | None = None,
        template: ChatTemplate | None = None,
        delay: float = 0.0,
        gated: bool = False,
    ) -> None:
        self.card = ModelCard("fake", 0x110000, 4096, (0,), template)
        self.requests: list[Generate | Score] = []
        self.most_alive = 0
        self._alive = 0
        self._reply = reply if callable(reply) else lambda _: reply
        self._scores = scores or {}
        self._delay = delay
        self._rids = itertools.count()
        self._arrived = threading.Condition()
        self._gate = asyncio.Event()
        if not gated:
            self._gate.set()

    def new_rid(self) -> str:
        return f"rid-{next(self._rids)}"

    def open_gate(self) -> None:
        eventloop.background_loop().call_soon_threadsafe(self._gate.set)

    def wait_for_requests(self, count: int) -> None:
        with self._arrived:
            assert self._arrived.wait_for(lambda: len(self.requests) >= count, 5)

    @property
    def prompts(self) -> list[str]:
        return [text_of(request.prompt) for request in self.requests]

    async def generate(self, request: Generate) -> AsyncIterator[Update]:
        await self._arrive(request)
        try:
            for index in range(request.params.n):
                for update in self._updates(request, index):
                    await asyncio.sleep(0)
                    yield update
        finally:
            self._alive -= 1

    async def score(self, request: Score) -> Scored:
        await self._arrive(request)
        self._alive -= 1
        scores = [self._scores[choice] for choice in request.choices]
        for score in scores:
            if isinstance(score, Exception):
                raise score
        return Scored(request.rid, tuple(scores), Usage(len(text_of(request.prompt)), 0, 0))

    async def flush(self) -> int:
        raise NotImplementedError

    async def info(self) -> RuntimeInfo:
        raise NotImplementedError

    async def _arrive(self, request: Generate | Score) -> None:
        with self._arrived:
            self.requests.append(request)
            self._arrived.notify_all()
        self._alive += 1
        self.most_alive = max(self.most_alive, self._alive)
        await self._gate.wait()
        await asyncio.sleep(self._delay)

    def _updates(self, request: Generate, index: int) -> list[Update]:
        params = request.params
        said = self._reply(text_of(request.prompt))
        if isinstance(said, Exception):
            raise said
        said += str(index) if index else ""
        text, finish = _ended(said, request)
        ids = tuple(map(ord, said[: params.max_tokens]))
        usage = Usage(len(text_of(request.prompt)), 1, len(ids))
        logprobs = tuple(TokenLogprob(-0.5, i, ((-0.5, i),)) for i in ids)
        last = Update(
            request.rid,
            index,
            finish=finish,
            usage=usage,
            next_top=((-0.25, 65), (-1.5, 66)) if not ids and params.top_logprobs else (),
        )
        shown = [
            Update(
                request.rid,
                index,
                text=text[at : at + 1],
                ids=(ids[at],),
                logprobs=logprobs[at : at + 1] if params.wants_logprobs else (),
            )
            for at in range(len(ids))
        ]
        updates = [*shown, last]
        return updates if request.stream else [_merged(updates)]


def _ended(said: str, request: Generate) -> tuple[str, Finish]:
    """The text without its stop, and the finish.

    A stop that starts with '.' counts as cutting a token: the character before it is only text.
    """
    said = said[: request.params.max_tokens]
    found = [(said.find(stop), stop) for stop in request.params.stop if stop in said]
    if found:
        at, stop = min(found)
        kept = at - 1 if stop.startswith(".") else at
        return said[:at], Finish("stop", stop, kept, said[kept:at], request.params.seed or 0)
    reason = "length" if len(said) == request.params.max_tokens else "stop"
    return said, Finish(reason, None, len(said), "", request.params.seed or 0)


def _merged(updates: list[Update]) -> Update:
    return Update(
        updates[0].rid,
        updates[0].index,
        "".join(update.text for update in updates),
        tuple(i for update in updates for i in update.ids),
        tuple(p for update in updates for p in update.logprobs),
        next_top=updates[-1].next_top,
        finish=updates[-1].finish,
        usage=updates[-1].usage,
    )
