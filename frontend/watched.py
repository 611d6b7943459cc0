"""A backend seen from one step: it answers as ever, and what each request cost is recorded."""

from __future__ import annotations

import asyncio
import time
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from branchline.backend import TakesHints
from branchline.protocol import Usage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from branchline.backend import Backend
    from branchline.events import Branch
    from branchline.protocol import (
        Generate,
        ModelCard,
        Score,
        Scored,
        Update,
    )
    from branchline.record import Record
    from branchline.runtime_info import RuntimeInfo


class Watched:
    """Passes everything on to a backend."""

    def __init__(self, backend: Backend, record: Record, *, streams: bool) -> None:
        self._backend = backend
        self._record = record
        self._streams = streams  # every generation, so that its first token can be timed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    @property
    def card(self) -> ModelCard:
        """The model that answers."""
        return self._backend.card

    def new_rid(self) -> str:
        """The backend's."""
        return self._backend.new_rid()

    async def generate(self, request: Generate) -> AsyncIterator[Update]:
        """The backend's updates."""
        if self._streams:
            request = replace(request, stream=True)
        updates = self._backend.generate(request)
        try:
            with self._bill(request.rid) as bill:
                async for update in updates:
                    if update.usage is not None:
                        bill.add(update.usage)
                    if update.ids and request.stream:
                        bill.see_token()
                    yield update
        finally:
            close = getattr(updates, "aclose", None)
            if close is not None:
                await close()

    async def score(self, request: Score) -> Scored:
        """The backend's scores."""
        with self._bill(request.rid) as bill:
            scored = await self._backend.score(request)
            bill.add(scored.usage)
        return scored

    async def flush(self) -> int:
        """The backend's."""
        return await self._backend.flush()

    async def info(self) -> RuntimeInfo:
        """The backend's."""
        return await self._backend.info()

    def ended(self, program: str, branch: Branch = ()) -> None:
        """Passed on to a backend that takes hints."""
        if isinstance(self._backend, TakesHints):
            self._backend.ended(program, branch)

    @contextmanager
    def _bill(self, rid: str) -> Iterator[_Bill]:
        bill = _Bill()
        error = None
        try:
            yield bill
        except BaseException as failure:
            given_up = isinstance(failure, asyncio.CancelledError | GeneratorExit)
            error = "aborted" if given_up else f"{type(failure).__name__}: {failure}"
            raise
        finally:
            self._record.used(rid, bill.usage, bill.began, bill.first, error)


class _Bill:
    """What one request costs."""

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.first: float | None = None  # when the first token came
        self.usage = Usage(0, 0, 0)

    def add(self, usage: Usage) -> None:
        """One of its choices has ended."""
        self.usage = Usage(
            self.usage.prompt_tokens + usage.prompt_tokens,
            self.usage.cached_tokens + usage.cached_tokens,
            self.usage.completion_tokens + usage.completion_tokens,
            self.usage.forced_tokens + usage.forced_tokens,
        )

    def see_token(self) -> None:
        """A token has come."""
        if self.first is None:
            self.first = time.perf_counter()
