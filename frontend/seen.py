"""What can be seen of a state: its events, what it cost, its trace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from branchline.events import Events
from branchline.handle import Handle
from branchline.trace import trace_of
from branchline.trace_page import fragment
from branchline.tree import grow
from branchline.usage import state_usage

if TYPE_CHECKING:
    from concurrent.futures import Future

    from branchline.usage import StateUsage


class Seen(Handle):
    """A state that can be looked at. What failed is seen as well; nothing here raises it."""

    def events(self) -> Events:
        """What happens in this state and in the branches below it, from its beginning, as it comes.

        Read it with `for` or `async for`. The texts of `TextAdded`, `RoleBegan`, `RoleEnded` and
        `VariableDelta` of one branch, joined, are what it added to the text. Every event is there
        in any run; but only with `run(stream=True)` a variable comes in pieces.
        """
        record = self._executor.record
        return Events(record.log, record.branch, self._settled())

    @property
    def usage(self) -> StateUsage:
        """What this state cost, each gen and each branch of it, when everything has happened."""
        self._settled().result()
        record = self._executor.record
        return state_usage(grow(record.log.feed.items())[record.branch])

    def trace(self) -> dict[str, Any]:
        """What happened, when everything has, as plain data for `json.dumps`.

        `branchline.trace` says how it reads; `branchline trace PROGRAM.py` makes a page of it.
        """
        self._settled().result()
        return trace_of(self._executor)

    def _repr_html_(self) -> str:
        """The trace for a notebook, when everything has happened."""
        return fragment(self.trace())

    def _settled(self) -> Future[None]:
        return self._executor.settled(outside=self._outside)
