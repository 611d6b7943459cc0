"""The pages of running requests: the page table, what is published, the one way to release."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from branchline.radix import PADDING_PAGE, PagePool, RadixTree
from branchline.runtime.programs import Programs
from branchline.runtime.request import State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from branchline.radix import Node
    from branchline.runtime.request import Request


RESERVED = 16  # pages of a decoding request, ahead of what it has computed


@dataclass(frozen=True, slots=True)
class Patch:
    """A change of one row of the device's page table, applied before the step that needs it."""

    slot: int
    start: int  # first position
    pages: np.ndarray  # int32 [n]


class Memory:
    """Pages, tree and page table of one pool. All of it belongs to the engine thread.

    The engine keeps this copy of the page table; the device's copy follows through patches.
    `on_publish` is told of each request and end whose tokens before that end are new in the tree.
    """

    def __init__(self, pages: int, slots: int, max_context: int, *, cache: bool = True) -> None:
        self.pool = PagePool(pages)
        self.tree = RadixTree()
        self.programs = Programs(self.tree)
        self.table = np.full((slots, max_context), PADDING_PAGE, dtype=np.int32)
        self.evicted = 0  # pages, since the start
        self.on_publish: Callable[[Request, int], None] = lambda *_: None
        self._cache = cache
        self._free_slots = list(range(slots - 1, -1, -1))
        self._patches: list[Patch] = []

    @property
    def available(self) -> int:
        """Pages that can be had now: free ones, and cached ones that nobody holds."""
        return self.pool.free + self.tree.evictable

    @property
    def has_slot(self) -> bool:
        """Whether one more request can run."""
        return bool(self._free_slots)

    def peek(self, request: Request) -> int:
        """The length of the longest cached prefix, without touching it."""
        return self.tree.match_length(request.known, request.salt) if self._cache else 0

    def admit(self, request: Request, needed: int) -> bool:
        """Give a waiting request a slot and lock its prefix, if `needed` pages are then left.

        Locking takes pages from the available ones, hence the second look. False: nothing changed.
        """
        if not self._free_slots or needed > self.available:
            return False
        known = request.known if self._cache else request.known[:0]
        match = self.tree.match(known, request.salt)
        self.tree.lock(match.node)
        if needed > self.available:
            self.tree.unlock(match.node)
            return False
        request.state = State.RUNNING
        request.slot = self._free_slots.pop()
        request.node = match.node
        request.cached_len = match.length
        request.computed = 0
        request.extend_len = len(request.known)
        self._set_row(request, 0, match.pages)
        self._skip_cached(request)
        return True

    def match_published(self, request: Request) -> None:
        """Take what others have published since: the tree's part grows without computing."""
        if not self._cache or request.cached_len >= request.extend_len:
            return
        if request.held > request.cached_len:
            return  # it has decoded: between the tree's part and what is to come are its own pages
        assert request.node is not None
        match = self.tree.match_from(request.node, request.known[request.cached_len :])
        if match.length:
            self._set_row(request, request.cached_len, match.pages)
            self._move_lock(request, match.node, request.cached_len + match.length)
            self._skip_cached(request)

    def extend(self, request: Request, end: int) -> int:
        """Allocate and publish up to position `end`; returns the position that could be reached.

        Published when planned: whoever matches next finds these positions, and reads them no
        earlier than in the forward that writes them. Behind pages of its own, which may be
        duplicates, a request keeps those it gets too, as if it decoded.
        """
        first, held = request.kv_len, request.held
        if end <= first:
            return end
        pages = self.allocate(max(0, min(end - held, self.available)))
        end = min(end, held + len(pages))
        self._set_row(request, held, pages)
        if self._cache and request.cached_len == held and end > first:
            assert request.node is not None
            node = self.tree.insert(request.node, request.known[first:end], pages)
            self._move_lock(request, node, end)
            self.on_publish(request, end)
        return end

    def grow(self, requests: Sequence[Request]) -> None:
        """A private page for the next position of each; the caller has checked that there are some.

        Where one has none left, all of them get pages ahead if there is room for twice that: the
        steps that follow then leave the page table as it is.
        """
        if all(request.held > request.kv_len for request in requests):
            return
        ahead = RESERVED if self.available >= 2 * RESERVED * len(requests) else 1
        for request in requests:
            count = request.kv_len + min(ahead, request.remaining) - request.held
            if count > 0:
                self._set_row(request, request.held, self.allocate(count))

    def allocate(self, count: int) -> np.ndarray:
        """`count` pages, evicting as needed; the caller has checked that they can be had."""
        shortage = count - self.pool.free
        if shortage > 0:
            self.programs.expire()
            evicted = self.tree.evict(shortage)
            self.evicted += len(evicted)
            self.pool.release(evicted)
        pages = self.pool.allocate(count)
        assert pages is not None, f"{count} pages were promised, {self.pool.free} are free"
        return pages

    def release(self, request: Request) -> None:
        """Take everything back from a running request, once; what it generated goes into the tree.

        Only tokens whose ids are known enter (`committed`), so an overrun cannot. A page may be
        reused at once: launches that still name it were queued before any that will.
        """
        assert request.state is State.RUNNING
        self._commit(request)
        row = self.table[request.slot]
        self.pool.release(row[request.cached_len : request.held].copy())
        assert request.node is not None
        self.programs.computed(request)
        self.tree.unlock(request.node)
        self._free_slots.append(request.slot)
        request.node = None
        request.slot = -1
        request.cached_len = request.computed = request.held = request.extend_len = 0

    def flush(self) -> int:
        """Drop every cached prefix that nobody holds; the number of pages that became free."""
        pages = self.tree.flush()
        self.pool.release(pages)
        return len(pages)

    def take_patches(self) -> tuple[Patch, ...]:
        """The changes of the page table since the last call."""
        patches = tuple(self._patches)
        self._patches.clear()
        return patches

    def private(self, running: Iterable[Request]) -> int:
        """Pages that belong to running requests and not to the tree."""
        return sum(request.held - request.cached_len for request in running)

    def check(self, running: Iterable[Request]) -> None:
        """Recount every page; AssertionError where free, cached and private are not a partition."""
        self.tree.check()
        owners = np.zeros(self.pool.total, dtype=np.int32)
        owners[PADDING_PAGE] += 1
        owners[self.pool.free_pages()] += 1
        owners[self.tree.all_pages()] += 1
        for request in running:
            assert request.node is not None
            assert request.node.end == request.cached_len
            row = self.table[request.slot]
            in_tree = self.tree.pages_of(request.node)
            assert np.array_equal(row[: request.cached_len], in_tree), f"row of {request.id}"
            assert request.kv_len <= request.held
            owners[row[request.cached_len : request.held]] += 1
        wrong = np.flatnonzero(owners != 1)
        assert not len(wrong), f"pages {wrong[:8]} have {owners[wrong[:8]]} owners"

    def _commit(self, request: Request) -> None:
        """Put generated tokens in the tree and free those that it already had.

        Only generated tokens can be duplicates, and the row ends with the release: no page that is
        freed here is named by a later launch.
        """
        start, end = request.cached_len, request.committed
        if not self._cache or end <= start:
            return
        assert request.node is not None
        tokens = request.tokens[start:end]
        pages = self.table[request.slot, start:end].copy()
        match = self.tree.match_from(request.node, tokens)
        node = self.tree.insert(match.node, tokens[match.length :], pages[match.length :])
        self._move_lock(request, node, end)
        self.on_publish(request, end)
        self.pool.release(pages[: match.length])

    def _move_lock(self, request: Request, node: Node, cached_len: int) -> None:
        """Make `node`, a descendant of the request's node, the end of its tree part."""
        old = request.node
        assert old is not None
        self.tree.lock(node)
        self.tree.unlock(old)
        request.node = node
        request.cached_len = cached_len

    def _skip_cached(self, request: Request) -> None:
        """Start computing as late as possible: the last token always, and what logprobs need."""
        last = request.extend_len - 1
        request.computed = max(request.computed, min(request.cached_len, last, request.first_logit))

    def _set_row(self, request: Request, start: int, pages: np.ndarray) -> None:
        """Append pages to a request's row of the table."""
        assert start == request.held
        request.held = start + len(pages)
        self.table[request.slot, start : request.held] = pages
        if len(pages):
            self._patches.append(Patch(request.slot, start, pages))
