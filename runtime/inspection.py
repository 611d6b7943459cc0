"""A picture of the tree and of the requests, taken between steps and in small parts.

The tree knows the size of each subtree, so the largest nodes are found from the top: what is not
opened costs nothing. Opening nodes is spread over steps; what the picture says is then read at
once, so that it fits together.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import time
from bisect import bisect_right
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from branchline.protocol import Failure, Inspection
from branchline.runtime_info import RequestView, RuntimeInfo, TreeNode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from branchline.protocol import RuntimeMessage
    from branchline.radix import Node, RadixTree, TokenArray
    from branchline.runtime.request import Request
    from branchline.runtime.scheduler import Scheduler
    from branchline.runtime.text import Tokenizer

logger = logging.getLogger(__name__)

MOST_NODES = 5000
MOST_REQUESTS = 1000
SHOWN_TOKENS = 48  # of the beginning of a node
SLICE = 0.001  # seconds of one step
CHILDREN = 256  # looked at without asking for the time


class Run(NamedTuple):
    """A node as it was, its tokens not text yet. A tuple: thousands are made at once."""

    id: int
    parent: int
    start: int
    length: int
    subtree: int
    users: int
    last_use: int
    tokens: TokenArray  # the first ones
    salted: bool


@dataclass(slots=True)
class Picture:
    """What was seen. `inspection` makes a message of it, in another thread than the engine's."""

    runs: list[Run]
    total_nodes: int
    requests: tuple[RequestView, ...]
    info: RuntimeInfo
    _nodes: tuple[TreeNode, ...] | None = field(default=None, repr=False)

    def inspection(self, rid: str, decode: Callable[[list[int]], str]) -> Inspection:
        """The answer to who asked; several may get the same picture."""
        if self._nodes is None:
            self._nodes = tuple(self._shown(decode))
        return Inspection(rid, self._nodes, self.total_nodes, self.requests, self.info)

    def _shown(self, decode: Callable[[list[int]], str]) -> Iterator[TreeNode]:
        uses = sorted(run.last_use for run in self.runs)
        for run in self.runs:
            later = len(uses) - bisect_right(uses, run.last_use)
            yield TreeNode(
                id=run.id,
                parent=run.parent,
                start=run.start,
                length=run.length,
                subtree=run.subtree,
                users=run.users,
                idle=later / max(1, len(uses) - 1),
                text=decode(run.tokens.tolist()),
                salted=run.salted,
            )


class Painter:
    """Makes messages of pictures, in a thread of its own: turning tokens into text takes a while.

    Without a tokenizer no text is shown.
    """

    def __init__(
        self, post: Callable[[bytes, RuntimeMessage], None], tokenizer: Tokenizer | None
    ) -> None:
        self._post = post
        self._tokenizer = tokenizer
        self._thread = ThreadPoolExecutor(1, "branchline-inspect")  # started when it is needed

    def paint(self, client: bytes, rid: str, picture: Picture) -> None:
        """Send a picture to who asked for it, soon; after `close` nobody waits for one."""
        with suppress(RuntimeError):  # how an executor says that it was shut down
            self._thread.submit(self._paint, client, rid, picture)

    def close(self) -> None:
        """Paint nothing more; what was begun is finished."""
        self._thread.shutdown()

    def _paint(self, client: bytes, rid: str, picture: Picture) -> None:
        try:
            answer: RuntimeMessage = picture.inspection(rid, self._read)
        except Exception as error:
            logger.exception("a picture met a bug")
            answer = Failure(rid, "internal", f"{type(error).__name__}: {error}")
        self._post(client, answer)

    def _read(self, ids: list[int]) -> str:
        """The text; a node may begin and end inside a character."""
        if self._tokenizer is None:
            return ""
        return self._tokenizer.decode(ids, skip_special_tokens=False).strip("\ufffd")


class Inspector:
    """Takes pictures for who asks. It belongs to the engine thread, which calls `work` each step.

    Who asks while a picture is being taken gets the next one.
    """

    def __init__(self, scheduler: Scheduler, info: Callable[[], RuntimeInfo]) -> None:
        self._scheduler = scheduler
        self._info = info
        self._asked: dict[int, list[Callable[[Picture], None]]] = {}  # by the number of nodes
        self._opening: Iterator[None] | None = None

    @property
    def busy(self) -> bool:
        """Whether there is something to do without waiting for a message."""
        return bool(self._asked) or self._opening is not None

    def ask(self, nodes: int, done: Callable[[Picture], None]) -> None:
        """Let `done` have a picture with the `nodes` largest nodes."""
        self._asked.setdefault(nodes, []).append(done)

    def work(self) -> None:
        """Go on for a moment."""
        if self._opening is None:
            if not self._asked:
                return
            count = next(iter(self._asked))
            self._opening = self._take(count, self._asked.pop(count))
        end = time.perf_counter() + SLICE
        for _ in self._opening:
            if time.perf_counter() > end:
                return
        self._opening = None

    def _take(self, count: int, asked: list[Callable[[Picture], None]]) -> Iterator[None]:
        tree = self._scheduler.memory.tree
        chosen: dict[Node, bool] = {}
        yield from _open_largest(tree, count, chosen)
        runs = _runs(chosen, count)
        shown = {run.id for run in runs}
        picture = Picture(runs, tree.nodes, tuple(self._views(shown)), self._info())
        for done in asked:
            done(picture)

    def _views(self, shown: set[int]) -> Iterator[RequestView]:
        now = time.monotonic()
        scheduler = self._scheduler
        everyone: Iterable[Request] = itertools.chain(scheduler.running, scheduler.waiting)
        for request in itertools.islice(everyone, MOST_REQUESTS):
            runs = request in scheduler.running
            prompt_len = len(request.prompt)
            matched = min(request.cached_len, prompt_len)  # or published by itself
            yield RequestView(
                rid=request.rid,
                index=request.index,
                state="running" if runs else "waiting",
                prompt_tokens=prompt_len,
                cached_tokens=max(0, matched - request.computed_prompt_tokens),
                output_tokens=request.output_len,
                max_tokens=request.params.max_tokens,
                age=now - request.arrived,
                program=None if request.origin is None else request.origin.program,
                node=None if request.node is None else _shown_id(request.node, shown),
                priority=request.priority,
            )


def _shown_id(node: Node, shown: set[int]) -> int | None:
    return node.serial if node.serial in shown else None


def _open_largest(tree: RadixTree, count: int, chosen: dict[Node, bool]) -> Iterator[None]:
    """Put the largest nodes into `chosen`, with whether they are salted; pauses often.

    The tree may change meanwhile: what has left it, or was split, is seen to at the end.
    """
    heap: list[tuple[int, int, Node, bool]] = []
    for salt, root in tree.roots():
        yield from _offer(heap, root, salted=salt is not None)
    while heap and len(chosen) < count:
        _, _, node, salted = heapq.heappop(heap)
        chosen[node] = salted
        yield
        yield from _offer(heap, node, salted=salted)


def _offer(heap: list[tuple[int, int, Node, bool]], node: Node, *, salted: bool) -> Iterator[None]:
    children = list(node.children.values())
    for first in range(0, len(children), CHILDREN):
        for child in children[first : first + CHILDREN]:
            heapq.heappush(heap, (-child.subtree, child.serial, child, salted))
        yield


def _runs(chosen: dict[Node, bool], count: int) -> list[Run]:
    """The chosen nodes as they are now, with all their ancestors; the largest first.

    An ancestor has more tokens in and below it than what is below it: so parents come first, and a
    cut leaves nobody without its parent.
    """
    for node, salted in list(chosen.items()):
        above = node.parent
        while above is not None and above.end and above not in chosen:
            chosen[above] = salted
            above = above.parent
    kept = [node for node in chosen if node.subtree]
    kept.sort(key=attrgetter("subtree"), reverse=True)
    return [_run(node, chosen[node]) for node in kept[:count]]


def _run(node: Node, salted: bool) -> Run:
    parent, length = node.parent, len(node.tokens)
    assert parent is not None, "only a root has none"
    return Run(
        node.serial,
        parent.serial if parent.end else -1,
        node.end - length,
        length,
        node.subtree,
        node.locks,
        node.last_use,
        node.tokens[:SHOWN_TOKENS],
        salted,
    )
