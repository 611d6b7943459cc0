"""What the language needs of whatever answers it: a runtime, an engine in this process, a fake."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeGuard, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from branchline.hints import Branch
    from branchline.protocol import Generate, ModelCard, Score, Scored, Update
    from branchline.runtime_info import RuntimeInfo


class Backend(Protocol):
    """Answers requests. The coroutines run on the background loop (`branchline.eventloop`).

    Raises, from `generate` and `score`:
        InvalidRequest: the request breaks a rule.
        RequestAborted: it was aborted.
        RuntimeUnavailable: the runtime is gone.
        RuntimeFailed: the runtime met a bug of its own.
    """

    @property
    def card(self) -> ModelCard:
        """The model that answers."""

    def new_rid(self) -> str:
        """An rid that is unique on this connection."""

    def generate(self, request: Generate) -> AsyncIterator[Update]:
        """The updates of a request until every choice has finished; closing early aborts it."""

    async def score(self, request: Score) -> Scored:
        """The log-likelihoods of the choices; cancelling aborts it."""

    async def flush(self) -> int:
        """Drop every cached prefix that nobody holds; the number of pages that became free."""

    async def info(self) -> RuntimeInfo:
        """What the runtime is doing."""


@runtime_checkable
class TakesHints(Protocol):
    """What a backend has as well that keeps a cache, and so makes use of `Hints`."""

    def ended(self, program: str, branch: Branch = ()) -> None:
        """A program, or a branch of it with those below, asks for nothing more; from any thread."""


def takes_hints(backend: object) -> TypeGuard[TakesHints]:
    """Whether it does."""
    return isinstance(backend, TakesHints)


def constrains(backend: object) -> bool:
    """Whether its model can be held to what a gen's `type` allows.

    Where it says `constrains = False` the text is only parsed, and may be no value.
    """
    return bool(getattr(backend, "constrains", True))
