"""The radix tree: the cached token sequences and the pages that hold them."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import numpy as np

from branchline.radix import invariants
from branchline.radix.eviction import EvictionQueue
from branchline.radix.node import EMPTY, Match, Node, TokenIds, descend, join, subtree, upward

if TYPE_CHECKING:
    from branchline.radix.pages import PageArray


class RadixTree:
    """Cached sequences as runs of tokens, a run shared by all sequences that begin with it.

    There is one root per salt. The tree keeps a root that has children or locks; any other lives
    for as long as somebody holds it. So a miss leaves nothing behind, and a root that was matched
    and then emptied by an eviction can still be inserted below.

    A split makes the *upper* part the new node::

        parent ── abcdef*          match(abc)         parent ── abc ── def*
                                  ───────────▶                         * the node others hold
    """

    def __init__(self) -> None:
        self._roots: WeakValueDictionary[str | None, Node] = WeakValueDictionary()
        self._kept_roots: set[Node] = set()
        self._queue = EvictionQueue()
        self._clock = 0
        self._serials = itertools.count()
        self._cached = 0
        self._evictable = 0
        self._nodes = 0

    @property
    def nodes(self) -> int:
        """Nodes with tokens: roots do not count."""
        return self._nodes

    @property
    def cached(self) -> int:
        """Pages in the tree."""
        return self._cached

    @property
    def evictable(self) -> int:
        """Pages in the tree that no lock protects."""
        return self._evictable

    @property
    def protected(self) -> int:
        """Pages in the tree that a lock protects."""
        return self._cached - self._evictable

    # Looking

    def root(self, salt: str | None) -> Node:
        """The root of the sequences with this salt."""
        root = self._roots.get(salt)
        if root is None:
            root = Node(EMPTY, EMPTY, parent=None, end=0, serial=next(self._serials))
            self._roots[salt] = root
        return root

    def match(self, tokens: TokenIds, salt: str | None = None) -> Match:
        """The longest cached prefix of `tokens`, which becomes the most recently used one.

        Where it stops inside a run, the run is split, and its unmatched part keeps its old recency.
        """
        return self.match_from(self.root(salt), tokens)

    def match_from(self, node: Node, tokens: TokenIds) -> Match:
        """As `match`, for `tokens` that follow the end of `node`; `length` counts from there."""
        assert node.in_tree, f"matching below a node that has left the tree: {node}"
        path, length = descend(node, tokens)
        last = path[-1] if path else node
        unmatched = last.end - node.end - length
        if unmatched:
            last = path[-1] = self._split(last, len(last.tokens) - unmatched)
        self._use(last)
        return Match(last, length, join([step.pages for step in path]))

    def match_length(self, tokens: TokenIds, salt: str | None = None) -> int:
        """How much of `tokens` is cached; changes nothing, not even recency."""
        root = self._roots.get(salt)
        return 0 if root is None else descend(root, tokens)[1]

    def pages_of(self, node: Node) -> PageArray:
        """The pages from the root to the end of `node`."""
        return join([step.pages for step in upward(node)][::-1])

    def all_pages(self) -> PageArray:
        """Every page in the tree, by walking."""
        return join([node.pages for root in self._roots.values() for node in subtree(root)])

    def roots(self) -> list[tuple[str | None, Node]]:
        """Each salt with its root."""
        return list(self._roots.items())

    def sequences(self) -> set[tuple[str | int | None, ...]]:
        """(salt, token, token, …) of every leaf."""
        return {
            (salt, *join([step.tokens for step in upward(node)][::-1]).tolist())
            for salt, root in self._roots.items()
            for node in subtree(root)
            if not node.children and node is not root
        }

    # Growing and protecting

    def insert(self, node: Node, tokens: TokenIds, pages: PageArray) -> Node:
        """The new, unlocked leaf below `node` that holds `tokens`; `node` itself for no tokens.

        `tokens` must be what a match from `node` left over: no child begins with the first of them.
        The path becomes the most recently used one.
        """
        assert node.in_tree, f"inserting below a node that has left the tree: {node}"
        assert len(tokens) == len(pages), f"{len(tokens)} tokens, {len(pages)} pages"
        if not len(tokens):
            self._use(node)
            return node
        assert int(tokens[0]) not in node.children, f"a child begins with {tokens[0]}: match first"
        leaf = Node(
            np.array(tokens, dtype=np.int32),
            np.array(pages, dtype=np.int32),
            parent=node,
            end=node.end + len(tokens),
            serial=next(self._serials),
        )
        node.children[int(tokens[0])] = leaf
        self._nodes += 1
        self._cached += len(pages)
        self._evictable += len(pages)
        self._use(leaf, grown=len(pages))
        self._queue.add(leaf)
        self._settle(node)
        return leaf

    def lock(self, node: Node) -> None:
        """Protects `node` and its ancestors from eviction until as many calls of `unlock`."""
        assert node.in_tree, f"locking a node that has left the tree: {node}"
        for step in upward(node):
            if step.locks == 0:
                self._evictable -= len(step.pages)
            step.locks += 1
            self._settle(step)

    def unlock(self, node: Node) -> None:
        """Takes back one `lock`; the path of `node` is now the most recently used one."""
        for step in upward(node):
            assert step.locks > 0, f"unlocking a node that is not locked: {step}"
            step.locks -= 1
            if step.locks == 0:
                self._evictable += len(step.pages)
        self._use(node)
        for step in upward(node):
            self._settle(step)

    # Advice

    def need(self, node: Node, count: int = 1) -> None:
        """Says that `count` will go on from the end of `node`: its path is evicted late.

        Advice, not a lock: it may go all the same, and the handle is still good for `unneed`.
        """
        node.needs_here += count
        for step in upward(node):
            step.needs += count

    def unneed(self, node: Node, end: int, count: int = 1) -> None:
        """Takes back a `need` of a node that ended at `end` then."""
        if node.end == end:  # else it has lost its tail, and what was there is forgotten
            node.needs_here -= count
        for step in upward(node):
            assert step.needs >= count, f"taking back {count} needs of {step}"
            step.needs -= count
            self._queue.fell(step)

    def end(self, node: Node, start: int) -> None:
        """Says that whoever used `node` has ended: what is cached behind `start` goes first.

        That is what begins with the path of `node` and is longer than `start`, where nobody needs
        or holds it, until it is used again. A `node` that was evicted counts as far as it is left.
        """
        own = [step for step in upward(node) if len(step.tokens) and step.end > start]
        if not own:
            return
        top = own[-1]
        if top.start < start:
            self._split(top, start - top.start)
        for step in subtree(top):
            if not step.needs and not step.locks:
                step.ended = True
                self._queue.fell(step)

    # Shrinking

    def evict(self, count: int) -> PageArray:
        """Takes `count` pages out of the tree, or all that are evictable; the caller frees them."""
        assert count >= 0, f"cannot evict {count} pages"
        taken = []
        while count > 0 and (leaf := self._queue.pop()) is not None:
            taken.append(self._cut_tail(leaf, min(count, len(leaf.pages))))
            count -= len(taken[-1])
        return join(taken)

    def flush(self) -> PageArray:
        """Takes out everything that is not locked."""
        return self.evict(self._evictable)

    def check(self) -> None:
        """Recounts everything by walking; AssertionError says what is wrong."""
        roots = list(self._roots.values())
        nodes = [node for root in roots for node in subtree(root) if node is not root]
        for root in roots:
            invariants.check_root(root, kept=root in self._kept_roots)
        for node in (*roots, *nodes):
            invariants.check_children(node)
            assert node.last_use <= self._clock, f"used in the future: {node}"
        assert len(nodes) == self._nodes, f"{len(nodes)} nodes, counted as {self._nodes}"
        invariants.check_pages(nodes, self._cached, self._evictable)
        self._queue.check(nodes)

    # Inside

    def _use(self, node: Node, grown: int = 0) -> None:
        """Makes the path of `node` the most recent one; `grown` tokens of it are new."""
        self._clock += 1
        for step in upward(node):
            step.subtree += grown
            step.last_use = self._clock
            step.ended = False

    def _settle(self, node: Node) -> None:
        """Puts `node` where its children and locks say: a root is kept or not, a leaf is queued."""
        if node.parent is not None:
            self._queue.add(node)
        elif node.children or node.locks:
            self._kept_roots.add(node)
        else:
            self._kept_roots.discard(node)

    def _split(self, node: Node, at: int) -> Node:
        """Cuts `node` after `at` of its tokens; the new node is the upper part."""
        assert node.parent is not None
        upper = Node(
            node.tokens[:at].copy(),
            node.pages[:at].copy(),
            parent=node.parent,
            end=node.start + at,
            serial=next(self._serials),
            children={int(node.tokens[at]): node},
            locks=node.locks,
            subtree=node.subtree,
            last_use=node.last_use,
            needs=node.needs,
            ended=node.ended,
        )
        node.parent.children[int(node.tokens[0])] = upper
        node.parent = upper
        node.subtree -= at
        self._nodes += 1
        # Copies: a view would keep the other part's tokens in memory after that part is evicted.
        node.tokens = node.tokens[at:].copy()
        node.pages = node.pages[at:].copy()
        return upper

    def _cut_tail(self, leaf: Node, count: int) -> PageArray:
        kept = len(leaf.pages) - count
        pages = leaf.pages[kept:]
        self._cached -= count
        self._evictable -= count
        for step in upward(leaf):
            step.subtree -= count
        if kept == 0:
            self._detach(leaf)
        # Views: the cost of an eviction must not grow with what it leaves.
        leaf.tokens, leaf.pages = leaf.tokens[:kept], leaf.pages[:kept]
        if kept:
            leaf.end -= count
            leaf.needs_here = 0
            self._queue.add(leaf)
        return pages

    def _detach(self, node: Node) -> None:
        assert node.parent is not None
        del node.parent.children[int(node.tokens[0])]
        self._nodes -= 1
        self._settle(node.parent)
