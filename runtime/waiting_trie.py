"""The waiting prompts as a trie that knows, without looking, how much of each is cached."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from branchline.radix import descend
from branchline.runtime.ranking import Ranking

if TYPE_CHECKING:
    from collections.abc import Callable

    from branchline.radix import TokenArray
    from branchline.runtime.ranking import Key
    from branchline.runtime.request import Request


@dataclass(eq=False, slots=True)
class Edge:
    """A run of tokens that prompts share. A root's is empty.

    Its group is the requests that wait on it or below it and have the same match: all but those
    below a child of which something is cached. It holds requests that end here, and children that
    stand for their own groups, by (-priority, arrival) of its next.
    """

    tokens: TokenArray  # a view of the prompt that came first
    start: int  # tokens from the root to the beginning of this run
    cached: int = 0  # of the tokens, at most
    children: dict[int, Edge] = field(default_factory=dict)  # by their first token
    group: Ranking[Request | Edge] = field(default_factory=Ranking)

    @property
    def end(self) -> int:
        """Tokens from the root to the end of this run."""
        return self.start + len(self.tokens)

    @property
    def match(self) -> int:
        """The match of every request in its group, or more when pages were evicted since."""
        return self.start + self.cached

    def next_one(self) -> Request:
        """The request of its group with the highest priority, the oldest of several."""
        item: Request | Edge | None = self
        while isinstance(item, Edge):
            item = item.group.first()
        assert item is not None, "an empty group is in no ranking"
        return item


class WaitingTrie:
    """Finds the highest priority's request with the longest match, ties by arrival, of any number.

    ::

        root ── system prompt, all cached ──┬── A, nothing cached: in the group above, match 6
        (0)      (6 of 6)                   ├── B, nothing cached: in the group above, match 6
                                            └── C, 2 of 9 cached: a group of its own, match 8

    An edge with something cached is a frontier: where it stops is the match of its whole group. So
    a publish changes only the edges on one path, however many requests wait below them. An eviction
    changes nothing here: each edge's count is an upper bound, and the best group's is checked
    against the tree before it is believed. If it was too high, the bounds on one path are lowered
    and the next best is looked at; each such correction is paid for by the publish, or the arrival,
    that had raised them.

    A split stays until nothing waits below it, so a path has at most as many edges as tokens.
    """

    def __init__(self, match_length: Callable[[Request], int]) -> None:
        self._match_length = match_length
        self._roots: dict[str | None, Edge] = {}  # by salt
        # And roots; by (-priority, -match, arrival) of the group's next.
        self._frontiers: Ranking[Edge] = Ranking()

    def add(self, request: Request) -> None:
        """Let a request wait; `known` is its prompt and must not change while it is here."""
        path = self._grow(request)
        path[-1].group.put(request, (-request.priority, request.arrival))
        self._learn(path, self._match_length(request))
        self._settle(request.salt, path)

    def remove(self, request: Request) -> None:
        """Take out a request that waits."""
        path = self._path(request)
        path[-1].group.put(request, None)
        self._settle(request.salt, path)

    def publish(self, request: Request, end: int) -> None:
        """The first `end` tokens of a request, which need not be here, are in the tree now."""
        root = self._roots.get(request.salt)
        if root is None:
            return
        known = request.known[:end]
        output = np.array(request.tokens[len(known) : end], dtype=np.int32)
        edges, length = descend(root, np.concatenate((known, output)))
        if edges:
            # Where the prompts turn off, others may have published what they go on with.
            path = [root, *edges]
            self._learn(path, max(length, edges[-1].match))
            self._settle(request.salt, path)

    def first(self) -> tuple[Request, int] | None:
        """Of the highest priority the request with the longest match, the oldest, and its match."""
        while (edge := self._frontiers.first()) is not None:
            request = edge.next_one()
            match = self._match_length(request)
            assert match <= edge.match, f"{match} tokens are cached, {edge.match} were published"
            if match == edge.match:
                return request, match
            path = self._path(request)
            self._learn(path, match)
            self._settle(request.salt, path)
        return None

    def _path(self, request: Request) -> list[Edge]:
        """The edges from the root to where a request ends."""
        edge = self._roots[request.salt]
        path = [edge]
        while edge.end < len(request.known):
            edge = edge.children[int(request.known[edge.end])]
            path.append(edge)
        return path

    def _grow(self, request: Request) -> list[Edge]:
        """As `_path`, after making what is missing of it."""
        known = request.known
        root = self._roots.setdefault(request.salt, Edge(known[:0], start=0))
        edges, length = descend(root, known)
        path = [root, *edges]
        if length < path[-1].end:
            self._split(path[-1], length)
        if length < len(known):
            leaf = Edge(known[length:], start=length)
            path[-1].children[int(known[length])] = leaf
            path.append(leaf)
        return path

    def _split(self, edge: Edge, end: int) -> None:
        """Cut an edge so that it ends at `end`; the new edge is the lower part."""
        at = end - edge.start
        lower = Edge(
            edge.tokens[at:],
            start=end,
            cached=max(0, edge.cached - at),
            children=edge.children,
            group=edge.group,
        )
        edge.tokens = edge.tokens[:at]
        edge.cached = min(edge.cached, at)
        edge.children = {int(lower.tokens[0]): lower}
        edge.group = Ranking()
        self._place(lower, edge)

    def _learn(self, path: list[Edge], match: int) -> None:
        """Tell the edges of a path that it is cached up to `match`."""
        for edge in path:
            edge.cached = min(max(0, match - edge.start), len(edge.tokens))

    def _settle(self, salt: str | None, path: list[Edge]) -> None:
        """Put the edges of a path where they belong, after any change to them; empty ones go."""
        for depth in range(len(path) - 1, 0, -1):
            self._place(path[depth], path[depth - 1])
        root = path[0]
        self._frontiers.put(root, _rank(root.group.least(), 0))
        if not (root.group or root.children):
            del self._roots[salt]

    def _place(self, edge: Edge, parent: Edge) -> None:
        least = edge.group.least()
        parent.group.put(edge, None if edge.cached else least)
        self._frontiers.put(edge, _rank(least, edge.match) if edge.cached else None)
        if not (edge.group or edge.children):
            del parent.children[int(edge.tokens[0])]


def _rank(least: Key | None, match: int) -> Key | None:
    """The key of a frontier: its group's least key, with the match that all of them have."""
    if least is None:
        return None
    priority, arrival = least
    return (priority, -match, arrival)
