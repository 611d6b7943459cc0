"""Random use of the tree, beside a model that knows nothing of runs, splits or heaps."""

import itertools
import random
from dataclasses import dataclass

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from branchline.radix import Node, PagePool, RadixTree

SALTS = (None, "None", "tenant")
PAGES = 48


@dataclass(eq=False)
class Entry:
    """One cached token: the end of one prefix."""

    page: int
    last_use: int = 0
    locks: int = 0
    needs: int = 0
    needs_here: int = 0  # of the claims on the prefix that ends here
    ended: bool = False

    @property
    def worth(self) -> tuple[int, int]:
        needed = 3 if self.needs_here > 1 else 2
        return needed if self.needs else int(not self.ended), self.last_use


class Model:
    """A dict from (salt, *prefix) to its last token's entry. It looks at all to find one."""

    def __init__(self) -> None:
        self.entries: dict[tuple, Entry] = {}
        self.clock = 0

    def path(self, salt, tokens) -> list[Entry]:
        """The entries of the longest cached prefix."""
        keys = ((salt, *tokens[: end + 1]) for end in range(len(tokens)))
        return [self.entries[key] for key in itertools.takewhile(self.entries.__contains__, keys)]

    def use(self, path: list[Entry]) -> None:
        self.clock += 1
        for entry in path:
            entry.last_use = self.clock
            entry.ended = False

    def end(self, salt, tokens, path: list[Entry], start: int) -> None:
        """Marks all that begins like `tokens` up to past `start`, if that is still the same."""
        first = (salt, *tokens[: start + 1])
        if len(path) > start and self.entries.get(first) is path[start]:
            for key, entry in self.entries.items():
                if key[: len(first)] == first and not entry.needs and not entry.locks:
                    entry.ended = True

    def insert(self, salt, tokens, pages) -> None:
        start = len(tokens) - len(pages)
        for end, page in enumerate(pages, start + 1):
            self.entries[salt, *tokens[:end]] = Entry(int(page))
        self.use(self.path(salt, tokens))

    def leaves(self) -> set[tuple]:
        return set(self.entries) - {key[:-1] for key in self.entries}

    def evict(self, count: int) -> list[int]:
        """Page after page, each worth the least of those with nothing cached after them."""
        pages = []
        for _ in range(count):
            unlocked = [key for key in self.leaves() if not self.entries[key].locks]
            if not unlocked:
                break
            first = min(unlocked, key=lambda key: self.entries[key].worth)
            pages.append(self.entries.pop(first).page)
        return pages


@dataclass(eq=False)
class Holder:
    """A lock on a prefix, as a running request has it; or so many needs, as a program has."""

    node: Node
    salt: str | None
    tokens: list[int]
    path: list[Entry]
    count: int = 1


class Pair:
    """The tree and its pool, and the model, doing the same; every answer is compared."""

    def __init__(self, pages: int = PAGES) -> None:
        self.tree, self.pool, self.model = RadixTree(), PagePool(pages), Model()
        self.holders: list[Holder] = []
        self.claims: list[Holder] = []

    def look(self, salt, tokens) -> None:
        assert self.tree.match_length(tokens, salt) == len(self.model.path(salt, tokens))

    def match(self, salt, tokens) -> Node:
        match, path = self.tree.match(tokens, salt), self.model.path(salt, tokens)
        self.model.use(path)
        assert match.length == match.node.end == len(path)
        assert match.pages.tolist() == [entry.page for entry in path]
        return match.node

    def insert(self, node: Node, salt, tokens) -> Node:
        """Inserts what is missing of `tokens` below their match, when pages can be had for it."""
        missing = tokens[node.end :]
        self.tree.lock(node)
        held = self.model.path(salt, tokens)
        for entry in held:
            entry.locks += 1
        self.evict(max(0, len(missing) - self.pool.free))
        for entry in held:
            entry.locks -= 1
        self.tree.unlock(node)
        self.model.use(held)
        pages = self.pool.allocate(len(missing))
        if pages is None:
            return node
        leaf = self.tree.insert(node, missing, pages)
        self.model.insert(salt, tokens, pages)
        assert leaf.end == len(tokens)
        return leaf

    def lock(self, node: Node, salt, tokens) -> None:
        path = self.model.path(salt, tokens[: node.end])
        self.tree.lock(node)
        for entry in path:
            entry.locks += 1
        self.holders.append(Holder(node, salt, tokens[: node.end], path))

    def unlock(self, holder: Holder) -> None:
        self.holders.remove(holder)
        self.tree.unlock(holder.node)
        for entry in holder.path:
            entry.locks -= 1
        self.model.use(holder.path)

    def need(self, node: Node, salt, tokens, count: int) -> None:
        path = self.model.path(salt, tokens[: node.end])
        self.tree.need(node, count)
        for entry in path:
            entry.needs += count
        for entry in path[-1:]:
            entry.needs_here += count
        self.claims.append(Holder(node, salt, tokens[: node.end], path, count))

    def unneed(self, claim: Holder) -> None:
        """Takes a claim back, whatever is left of what it was on."""
        self.claims.remove(claim)
        self.tree.unneed(claim.node, len(claim.tokens), claim.count)
        for entry in claim.path:
            entry.needs -= claim.count
        for entry in claim.path[-1:]:
            entry.needs_here -= claim.count

    def end(self, claim: Holder, start: int) -> None:
        """As a program does that ends: it needs nothing more, and its own part is worth nothing."""
        self.unneed(claim)
        self.tree.end(claim.node, start)
        self.model.end(claim.salt, claim.tokens, claim.path, start)

    def grow(self, holder: Holder, more: list[int]) -> None:
        """Matches and inserts below the locked end, then moves the lock, as a request does."""
        tokens = holder.tokens + more
        match = self.tree.match_from(holder.node, np.array(more, dtype=np.int32))
        path = self.model.path(holder.salt, tokens)
        self.model.use(path)
        assert match.length == len(path) - len(holder.path)
        assert match.pages.tolist() == [entry.page for entry in path[len(holder.path) :]]
        self.lock(self.insert(match.node, holder.salt, tokens), holder.salt, tokens)
        self.unlock(holder)

    def evict(self, count: int) -> None:
        pages = self.tree.evict(count)
        assert set(pages.tolist()) == set(self.model.evict(count))
        self.pool.release(pages)

    def flush(self) -> None:
        pages = self.tree.flush()
        assert set(pages.tolist()) == set(self.model.evict(self.pool.total))
        self.pool.release(pages)

    def check(self) -> None:
        self.tree.check()
        entries = self.model.entries.values()
        protected = sum(entry.locks > 0 for entry in entries)
        assert self.tree.sequences() == self.model.leaves()
        assert (self.tree.cached, self.tree.protected) == (len(entries), protected)
        assert self.tree.evictable == len(entries) - protected
        owned = np.concatenate([self.pool.free_pages(), self.tree.all_pages()])
        assert sorted(owned.tolist()) == list(range(1, self.pool.total))
        for holder in self.holders:
            pages = [entry.page for entry in holder.path]
            assert self.tree.pages_of(holder.node).tolist() == pages
            assert holder.node.end == len(holder.tokens)


salts = st.sampled_from(SALTS)
token_lists = st.lists(st.integers(0, 2), max_size=10)


class TreeMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.pair = Pair()

    @rule(salt=salts, tokens=token_lists)
    def look(self, salt, tokens):
        self.pair.look(salt, tokens)

    @rule(salt=salts, tokens=token_lists, lock=st.booleans())
    def match(self, salt, tokens, lock):
        node = self.pair.match(salt, tokens)
        if lock:
            self.pair.lock(node, salt, tokens)

    @rule(salt=salts, tokens=token_lists, lock=st.booleans())
    def insert(self, salt, tokens, lock):
        leaf = self.pair.insert(self.pair.match(salt, tokens), salt, tokens)
        if lock:
            self.pair.lock(leaf, salt, tokens)

    @precondition(lambda self: self.pair.holders)
    @rule(data=st.data(), more=token_lists)
    def grow(self, data, more):
        self.pair.grow(data.draw(st.sampled_from(self.pair.holders)), more)

    @precondition(lambda self: self.pair.holders)
    @rule(data=st.data())
    def unlock(self, data):
        self.pair.unlock(data.draw(st.sampled_from(self.pair.holders)))

    @rule(salt=salts, tokens=token_lists, count=st.integers(1, 3))
    def need(self, salt, tokens, count):
        self.pair.need(self.pair.match(salt, tokens), salt, tokens, count)

    @precondition(lambda self: self.pair.claims)
    @rule(data=st.data(), start=st.none() | st.integers(0, 9))
    def unneed(self, data, start):
        claim = data.draw(st.sampled_from(self.pair.claims))
        if start is None:
            self.pair.unneed(claim)
        else:
            self.pair.end(claim, start)

    @rule(count=st.integers(0, 12))
    def evict(self, count):
        self.pair.evict(count)

    @rule()
    def flush(self):
        self.pair.flush()

    @invariant()
    def agree(self):
        self.pair.check()


TestTreeMachine = TreeMachine.TestCase
TestTreeMachine.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


def random_step(rng: random.Random, pair: Pair) -> None:
    """One operation, chosen and filled by `rng`."""
    salt = rng.choice(SALTS)
    tokens = rng.choices(range(3), k=rng.randrange(12))
    match rng.randrange(26):
        case 0 | 1 | 2:
            pair.look(salt, tokens)
        case 3 | 4 | 5:
            pair.match(salt, tokens)
        case 6 | 7 | 8:
            pair.insert(pair.match(salt, tokens), salt, tokens)
        case 9 | 10 | 11 if len(pair.holders) < 6:
            pair.lock(pair.match(salt, tokens), salt, tokens)
        case 12 | 13 if pair.holders:
            pair.grow(rng.choice(pair.holders), tokens)
        case 14 | 15 | 16 if pair.holders:
            pair.unlock(rng.choice(pair.holders))
        case 17 | 18:
            pair.evict(rng.randrange(10))
        case 19:
            if rng.randrange(10) == 0:
                pair.flush()
            else:
                pair.evict(1)
        case 20 | 21 | 22 if len(pair.claims) < 8:
            pair.need(pair.match(salt, tokens), salt, tokens, rng.randrange(1, 4))
        case 23 if pair.claims:
            pair.unneed(rng.choice(pair.claims))
        case 24 | 25 if pair.claims:
            pair.end(rng.choice(pair.claims), rng.randrange(8))


def test_20_000_random_operations():
    rng, pair = random.Random(2), Pair()
    for _ in range(20_000):
        random_step(rng, pair)
        pair.check()
    while pair.holders:
        pair.unlock(pair.holders[-1])
        pair.check()
    while pair.claims:
        pair.unneed(pair.claims[-1])
        pair.check()
    assert pair.tree.protected == 0
    pair.flush()
    pair.check()
    assert pair.pool.free + 1 == pair.pool.total


def test_page_by_page_the_order_of_eviction_is_exact():
    for seed in range(30):
        rng, pair = random.Random(seed), Pair(pages=200)
        for _ in range(150):
            random_step(rng, pair)
        while pair.holders:
            pair.unlock(rng.choice(pair.holders))
        if seed % 2:
            while pair.claims:
                pair.end(rng.choice(pair.claims), 2)
        expected = pair.model.evict(pair.tree.cached)
        assert [int(pair.tree.evict(1)[0]) for _ in expected] == expected
        assert pair.tree.evict(1).tolist() == []
