"""The log of a run as a tree: the events of each state, and the branches of each of its forks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from branchline.events import Failed, Forked, VariableEnded, VariableStarted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from branchline.events import Branch, Event


@dataclass(slots=True)
class Tree:
    """A state, and what came off it."""

    branch: Branch
    began: float = 0.0  # seconds since the run began
    events: list[Event] = field(default_factory=list)  # its own, in order
    forks: dict[int, list[Tree]] = field(default_factory=dict)  # branches by the fork's ordinal

    @property
    def ended(self) -> float:
        """When the last thing happened in it or below it."""
        own = self.events[-1].at if self.events else self.began
        return max([own, *(branch.ended for fork in self.forks.values() for branch in fork)])

    def holes(self) -> Iterator[list[Event]]:
        """The events of each gen and select: from its start to its end or its error."""
        hole: list[Event] | None = None
        for event in self.events:
            if isinstance(event, VariableStarted):
                hole = []
            if hole is not None:
                hole.append(event)
                if isinstance(event, (VariableEnded, Failed)):
                    yield hole
                    hole = None
        if hole is not None:
            yield hole


def grow(events: Iterable[Event]) -> dict[Branch, Tree]:
    """Every state of a run by its branch, from the run's events in order; `()` is the whole."""
    trees: dict[Branch, Tree] = {(): Tree(())}
    for event in events:
        tree = trees[event.branch]
        tree.events.append(event)
        if isinstance(event, Forked):
            branches = [(*event.branch, event.ordinal, index) for index in range(event.size)]
            tree.forks[event.ordinal] = [Tree(branch, event.at) for branch in branches]
            trees |= zip(branches, tree.forks[event.ordinal], strict=True)
    return trees
