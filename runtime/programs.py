"""What programs will still ask for, as far as they tell: it puts eviction in order.

Each branch of a program has one claim on the tree: where its last request ended, since that is
where it goes on. A fork has a claim for each of its branches that has not asked yet. ::

    the program writes x           ───── x 1
    its first branch of 3 asks     ───── x 1+2 ─┬─ a 1
    its second as well             ───── x 1+1 ─┼─ a 1
                                                └─ b 1
    the second ends                ───── x 1+1 ─┼─ a 1
                                                └─ b     is evicted before anything else
"""

from __future__ import annotations

import heapq
import itertools
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from branchline.hints import Branch
    from branchline.radix import Node, RadixTree
    from branchline.runtime.request import Request

MOST_PLACES = 200_000  # branches and forks; of more nothing is kept
PIN = 2  # a prompt that is to be kept counts as needed by several


@dataclass(slots=True)
class _Place:
    """Where a branch goes on, or where the branches of a fork start."""

    node: Node | None = None  # None: not known yet
    end: int = 0  # of the node, when it was claimed: eviction may have trimmed it since
    own_start: int | None = None  # of a branch: what is cached behind is its own
    expected: int = 0  # of a fork: branches that have not asked yet


@dataclass(slots=True)
class _Program:
    branches: dict[Branch, _Place] = field(default_factory=dict)
    forks: dict[Branch, _Place] = field(default_factory=dict)  # by the branch and the fork's number


class Programs:
    """The claims of all clients' programs on one tree. It belongs to the engine thread."""

    def __init__(self, tree: RadixTree, clock: Callable[[], float] = time.monotonic) -> None:
        self._tree = tree
        self._clock = clock
        self._programs: dict[bytes, dict[str, _Program]] = {}
        self._places = 0
        self._pins: list[tuple[float, int, Node, int]] = []  # a heap: (deadline, serial, node, end)
        self._serials = itertools.count()

    def arrived(self, request: Request) -> None:
        """Take note of the branch that asks, before it waits."""
        origin = request.origin
        if origin is None or origin.program is None or self._places >= MOST_PLACES:
            return
        programs = self._programs.setdefault(request.client, {})
        program = programs.setdefault(origin.program, _Program())
        branch = origin.hints.branch
        if branch in program.branches:
            return
        self._places += 1
        place = program.branches[branch] = _Place()
        if branch:
            fork = self._fork(program, branch[:-1], origin.hints.fan_out)
            self._take_over(fork, place)

    def computed(self, request: Request) -> None:
        """A request is about to let go of its node, which is where its branch goes on from."""
        origin = request.origin
        if origin is None or request.node is None:
            return
        if origin.hints.keep and request.ended:
            self._pin(_upto(request.node, len(request.prompt)), origin.hints.keep)
        program = self._programs.get(request.client, {}).get(origin.program or "")
        place = None if program is None else program.branches.get(origin.hints.branch)
        if place is not None:
            node = _upto(request.node, origin.goes_on_at)
            self._tree.need(node)
            if place.node is not None:
                self._tree.unneed(place.node, place.end)
            place.node, place.end = node, node.end
            if place.own_start is None:
                place.own_start = len(request.prompt)

    def ended(self, client: bytes, program: str | None = None, branch: Branch = ()) -> None:
        """A branch and those below ask nothing more; with no program, nothing of the client's."""
        programs = self._programs.get(client, {})
        if program is None:
            for name in list(programs):
                self.ended(client, name)
        elif program in programs:
            self._end(programs[program], branch)
            if not branch:
                del programs[program]
        if not programs:
            self._programs.pop(client, None)

    def expire(self) -> None:
        """Take back the claims of prompts that have been kept for long enough."""
        while self._pins and self._pins[0][0] <= self._clock():
            _, _, node, end = heapq.heappop(self._pins)
            self._tree.unneed(node, end, PIN)

    def _fork(self, program: _Program, key: Branch, fan_out: int) -> _Place:
        """The fork, which starts where the nearest branch above it had come to."""
        if key not in program.forks:
            self._places += 1
            fork = program.forks[key] = _Place(expected=fan_out)
            above = program.branches.get(_above(key, program))
            if above is not None and above.node is not None:
                fork.node, fork.end = above.node, above.end
                self._tree.need(fork.node, fan_out)
        return program.forks[key]

    def _take_over(self, fork: _Place, place: _Place) -> None:
        """A branch has come: one of the fork's claims is its own now."""
        place.node, place.end = fork.node, fork.end
        if fork.node is not None:
            place.own_start = fork.end
            if not fork.expected:  # it had ended before, or there are more than was said
                self._tree.need(fork.node)
        fork.expected = max(0, fork.expected - 1)

    def _end(self, program: _Program, branch: Branch) -> None:
        if branch and branch not in program.branches and branch[:-1] in program.forks:
            self._take_over(program.forks[branch[:-1]], never_came := _Place())
            self._places += 1
            program.branches[branch] = never_came
        ended = [program.branches.pop(key) for key in _within(branch, program.branches)]
        forks = [program.forks.pop(key) for key in _within(branch, program.forks)]
        self._places -= len(ended) + len(forks)
        for fork in forks:
            if fork.node is not None:
                self._tree.unneed(fork.node, fork.end, fork.expected)
        for place in ended:
            if place.node is not None:
                self._tree.unneed(place.node, place.end)
        for place in ended:
            if place.node is not None and place.own_start is not None:
                self._tree.end(place.node, place.own_start)

    def _pin(self, node: Node, seconds: float) -> None:
        self._tree.need(node, PIN)
        deadline = self._clock() + seconds
        heapq.heappush(self._pins, (deadline, next(self._serials), node, node.end))


def _upto(node: Node, end: int | None) -> Node:
    """The last node of a path that ends no later than `end`."""
    while end is not None and node.end > end:
        assert node.parent is not None, "a root ends at 0"
        node = node.parent
    return node


def _above(fork: Branch, program: _Program) -> Branch:
    """The innermost branch above a fork that has asked for something."""
    branch = fork[:-1]
    while branch and branch not in program.branches:
        branch = branch[:-2]
    return branch


def _within(branch: Branch, places: dict[Branch, _Place]) -> Iterator[Branch]:
    return iter([key for key in places if key[: len(branch)] == branch])
