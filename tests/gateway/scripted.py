"""A backend that says what a test has written down, in the pieces that the test has cut."""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from branchline.errors import BranchlineError
from branchline.gateway.app import create_app
from branchline.gateway.server import serving
from branchline.gateway.settings import Settings
from branchline.protocol import Finish, ModelCard, RuntimeInfo, TokenLogprob, Update, Usage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from branchline.protocol import Generate, Inspection, Score, Scored

CONTEXT = 1000


class Scripted:
    """A `Served` backend: `script` holds, for each request in turn, updates or an error."""

    def __init__(self) -> None:
        self.card = ModelCard("toy", 300, CONTEXT, (2,))
        self.lost: str | None = None
        self.asked: list[Generate] = []
        self.script: list[Sequence[Update | BranchlineError]] = []
        self._rids = itertools.count()

    def new_rid(self) -> str:
        return str(next(self._rids))

    async def generate(self, request: Generate) -> AsyncIterator[Update]:
        self.asked.append(request)
        said = self.script[(len(self.asked) - 1) % len(self.script)] if self.script else say("ok")
        for update in said if request.stream else merged(said):
            if isinstance(update, BranchlineError):
                raise update
            await asyncio.sleep(0)
            yield update

    async def score(self, request: Score) -> Scored:
        raise NotImplementedError

    async def flush(self) -> int:
        return 7

    async def info(self) -> RuntimeInfo:
        return RuntimeInfo("toy", 1.5, *[0] * 17)

    async def inspect(self, nodes: int = 2000) -> Inspection:
        raise NotImplementedError


def merged(said: Sequence[Update | BranchlineError]) -> list[Update | BranchlineError]:
    """The same with one update for each choice, as a request has it that does not stream."""
    choices: defaultdict[int, list[Update]] = defaultdict(list)
    for one in said:
        if isinstance(one, BranchlineError):
            return [one]
        choices[one.index].append(one)
    return [
        replace(
            updates[-1],
            text="".join(update.text for update in updates),
            ids=tuple(i for update in updates for i in update.ids),
            logprobs=tuple(token for update in updates for token in update.logprobs),
            prompt_logprobs=tuple(token for update in updates for token in update.prompt_logprobs),
        )
        for updates in choices.values()
    ]


def say(
    *texts: str,
    index: int = 0,
    reason: str = "stop",
    matched: str | int | None = 2,
    prompt_tokens: int = 10,
    cached: int = 4,
) -> list[Update]:
    """A choice that says some texts, each one token, and ends."""
    updates = [Update("", index, text, (100 + at,)) for at, text in enumerate(texts)]
    finish = Finish(reason, matched if reason == "stop" else None)
    return [
        *updates,
        Update("", index, finish=finish, usage=Usage(prompt_tokens, cached, len(texts))),
    ]


def token(text: str, logprob: float | None, *top: tuple[str, float]) -> TokenLogprob:
    """A token with its texts."""
    return TokenLogprob(
        logprob, 9, tuple((lp, 9) for _, lp in top), text, tuple(other for other, _ in top)
    )


@contextmanager
def gateway(backend: Scripted, **settings: object) -> Iterator[str]:
    """Serve a backend; the address."""
    with serving(create_app(backend, Settings(**settings))) as server:
        yield server.url
