"""What happens in a run, as it happens: one log for a program and all of its branches.

Usage, traces and the page are made from these events; there is no second account.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from branchline.feed import Feed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping
    from concurrent.futures import Future

    from branchline.program_error import ProgramError, Site

# (ordinal of the fork, index of the branch) of every fork above, flat; the program itself is ().
Branch: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened.

    Attributes:
        at: seconds since the run began.
        branch: where: the ordinal of the fork and the index of the branch, for every fork above.
    """

    at: float
    branch: Branch


@dataclass(frozen=True, slots=True, kw_only=True)
class TextAdded(Event):
    """The program wrote text."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleBegan(Event):
    """A turn began; the text is the template's."""

    role: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleEnded(Event):
    """A turn ended; the text is the template's."""

    role: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VariableStarted(Event):
    """A `gen` or a `select` is being carried out; without a name it fills no variable."""

    name: str | None
    kind: Literal["gen", "select"]
    site: Site  # the line that submitted it
    settings: Mapping[str, Any]  # what it says itself; the rest is as the run has it


@dataclass(frozen=True, slots=True, kw_only=True)
class VariableDelta(Event):
    """Text of the variable that has started: as it comes if the run streams, else all of it."""

    name: str | None
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VariableEnded(Event):
    """A variable has its value; of a `var_scope`, this is the only event."""

    name: str | None
    kind: Literal["gen", "select", "scope", "reasoning"]
    text: str
    value: Any
    meta: Any = None  # what is known about it, as `get_meta_info` has it
    error: BaseException | None = None  # the text is no such value


@dataclass(frozen=True, slots=True, kw_only=True)
class Used(Event):
    """A request has ended, and what it cost; a variable may take several.

    Attributes:
        rid: the request.
        seconds: it took, the wait for its turn included.
        ttft: seconds to its first token; None if it writes none, or all of it came at once.
        error: why it has no answer; what it cost is not known then.
        forced_tokens: of the generated ones, taken from a grammar without being sampled.
    """

    name: str | None
    rid: str
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    seconds: float
    ttft: float | None
    error: str | None = None
    forced_tokens: int = 0

    @property
    def first_token_at(self) -> float | None:
        """When its first token came, in seconds since the run began."""
        return None if self.ttft is None else self.at - self.seconds + self.ttft


@dataclass(frozen=True, slots=True, kw_only=True)
class Forked(Event):
    """Branches went off here: `branch + (ordinal, 0)` to `branch + (ordinal, size - 1)`."""

    ordinal: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined(Event):
    """The branches of a fork came back, as these variables or as text."""

    ordinal: int
    mode: str
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed(Event):
    """The state ended with an error."""

    error: ProgramError


class Log:
    """The events of a run, in order."""

    def __init__(self) -> None:
        self.feed: Feed[Event] = Feed()
        self.began_at = time.time()  # seconds since the epoch
        self._began = time.perf_counter()

    def now(self) -> float:
        """Seconds since the run began."""
        return time.perf_counter() - self._began


class Events:
    """The events of a state and of the branches below it, from the first one on, as they come.

    They can be read with `for` and with `async for`, any number of times; they end where everything
    that was appended has happened.
    """

    def __init__(self, log: Log, branch: Branch, end: Future[Any]) -> None:
        self._log = log
        self._branch = branch
        self._end = end

    def __iter__(self) -> Iterator[Event]:
        return (event for event in self._log.feed.follow(self._end) if self._is_below(event))

    async def __aiter__(self) -> AsyncIterator[Event]:
        async for event in self._log.feed.afollow(self._end):
            if self._is_below(event):
                yield event

    def _is_below(self, event: Event) -> bool:
        return event.branch[: len(self._branch)] == self._branch
