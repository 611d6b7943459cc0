"""The tree by example: splits, recency, locks, salts, and what it refuses."""

import gc
import weakref

import numpy as np
import pytest

from branchline.radix import RadixTree


def ids(text: str) -> list[int]:
    return [ord(letter) for letter in text]


class Letters:
    """A tree over strings; the pages of each `put` are numbered on from the last one's."""

    def __init__(self) -> None:
        self.tree = RadixTree()
        self.next_page = 1

    def match(self, text, salt=None):
        match = self.tree.match(ids(text), salt)
        self.tree.check()
        return match

    def below(self, node, text):
        pages = np.arange(self.next_page, self.next_page + len(text), dtype=np.int32)
        self.next_page += len(text)
        leaf = self.tree.insert(node, ids(text), pages)
        self.tree.check()
        return leaf

    def put(self, text, salt=None):
        match = self.match(text, salt)
        return self.below(match.node, text[match.length :])

    def evict(self, count):
        pages = self.tree.evict(count)
        self.tree.check()
        return pages.tolist()

    def holds(self, salt=None):
        """The strings cached under `salt`, one for each leaf."""
        found = self.tree.sequences()
        return {"".join(map(chr, tokens)) for owner, *tokens in found if owner == salt}


@pytest.fixture
def letters():
    return Letters()


def test_a_match_is_the_longest_cached_prefix(letters):
    letters.put("abcd")  # pages 1 to 4
    letters.put("abxy")  # pages 5 and 6
    assert letters.match("abxz").pages.tolist() == [1, 2, 5]
    assert letters.match("abcdef").pages.tolist() == [1, 2, 3, 4]
    assert letters.match("b").length == 0
    assert letters.match("").length == 0
    assert letters.holds() == {"abcd", "abxy"}
    assert letters.tree.cached == letters.tree.evictable == 6
    assert sorted(letters.tree.all_pages().tolist()) == [1, 2, 3, 4, 5, 6]


def test_a_match_from_a_node_counts_from_its_end(letters):
    letters.put("abcdef")
    node = letters.match("ab").node
    match = letters.tree.match_from(node, np.array(ids("cdx"), dtype=np.int32))
    assert (match.length, match.pages.tolist(), match.node.end) == (2, [3, 4], 4)
    assert letters.tree.pages_of(match.node).tolist() == [1, 2, 3, 4]
    assert letters.tree.match_from(match.node, ids("x")).node is match.node


def test_a_split_keeps_the_handle_below_and_copies_its_locks(letters):
    leaf = letters.put("abcdef")
    letters.tree.lock(leaf)
    letters.tree.lock(leaf)
    upper = letters.match("abc").node
    assert upper is not leaf
    assert leaf.parent is upper
    assert (leaf.tokens.tolist(), leaf.end, leaf.locks) == (ids("def"), 6, 2)
    assert (upper.tokens.tolist(), upper.end, upper.locks) == (ids("abc"), 3, 2)
    assert letters.tree.pages_of(leaf).tolist() == [1, 2, 3, 4, 5, 6]
    letters.tree.unlock(leaf)
    letters.tree.unlock(leaf)
    assert (leaf.locks, upper.locks, letters.tree.protected) == (0, 0, 0)


def test_inserting_nothing_is_the_node_itself(letters):
    leaf = letters.put("ab")
    assert letters.below(leaf, "") is leaf
    root = letters.tree.root("new")
    assert letters.below(root, "") is root


def test_locks_protect_the_matched_leaf_itself(letters):
    """mini-sglang#52: the loop that locked the ancestors skipped the node it began at."""
    letters.put("abc")
    match = letters.match("abc")
    letters.tree.lock(match.node)
    assert letters.evict(100) == []
    assert (letters.tree.protected, letters.tree.evictable) == (3, 0)
    assert letters.holds() == {"abc"}
    letters.tree.unlock(match.node)
    assert letters.tree.evictable == 3
    assert letters.evict(100) == [1, 2, 3]


def test_only_the_matched_part_of_a_split_becomes_recent(letters):
    """sglang#24892, mini-sglang#124: a split gave the whole run, or none of it, the new recency."""
    letters.put("abcd")
    letters.put("xy")
    letters.match("ab")
    assert letters.evict(2) == [3, 4]
    assert letters.holds() == {"xy", "ab"}
    assert letters.evict(2) == [5, 6]
    assert letters.holds() == {"ab"}


def test_a_lock_on_part_of_a_run_does_not_pin_the_rest_for_ever(letters):
    """bytedance-iaas/sglang#508: the lock on an unsplit run survived on the later split's child."""
    tail = letters.put("abcdef")
    match = letters.match("abc")
    letters.tree.lock(match.node)
    fork = letters.put("abcxyz")
    assert (letters.tree.protected, letters.tree.evictable) == (3, 6)
    letters.tree.unlock(match.node)
    assert [node.locks for node in (tail, fork, match.node, letters.tree.root(None))] == [0] * 4
    assert letters.tree.evictable == letters.tree.cached == 9
    assert len(letters.evict(9)) == 9


def use_by_unlock(letters, leaf):
    letters.tree.lock(leaf)
    letters.tree.unlock(leaf)


@pytest.mark.parametrize(
    ("use", "goes_first"),
    [
        (lambda letters, _: letters.match("ab"), [3, 4]),
        (lambda letters, leaf: letters.below(leaf, ""), [3, 4]),
        (use_by_unlock, [3, 4]),
        (lambda letters, _: letters.tree.match_length(ids("ab")), [1, 2]),
    ],
    ids=["match", "insert", "unlock", "match_length does not"],
)
def test_what_makes_a_path_recent(letters, use, goes_first):
    leaf = letters.put("ab")
    letters.put("xy")
    use(letters, leaf)
    assert letters.evict(2) == goes_first


def test_the_last_leaf_is_trimmed_at_its_tail(letters):
    leaf = letters.put("abcdef")
    assert letters.evict(2) == [5, 6]
    assert (leaf.end, letters.holds()) == (4, {"abcd"})
    letters.below(leaf, "xy")  # pages 7 and 8
    assert letters.evict(3) == [7, 8, 4]
    assert letters.evict(0) == []
    assert letters.evict(10) == [1, 2, 3]
    assert letters.tree.cached == 0


def test_a_parent_becomes_a_candidate_with_its_last_child(letters):
    letters.put("abc")
    letters.put("abd")
    letters.put("xy")
    letters.match("ab")
    assert letters.evict(2) == [3, 4]
    assert letters.evict(3) == [5, 6, 2]


def test_flush_takes_what_is_not_locked(letters):
    letters.put("abcd")
    letters.put("xy", salt="tenant")
    match = letters.match("ab")
    letters.tree.lock(match.node)
    assert sorted(letters.tree.flush().tolist()) == [3, 4, 5, 6]
    letters.tree.check()
    assert letters.holds() == {"ab"}
    letters.tree.unlock(match.node)
    assert letters.tree.flush().tolist() == [1, 2]
    assert letters.tree.sequences() == set()


def test_salts_are_separate_and_none_is_not_a_string(letters):
    letters.put("abc")
    letters.put("abd", salt="None")
    assert letters.match("abd").length == 2
    assert letters.match("abc", salt="None").length == 2
    assert letters.match("abc", salt="").length == 0
    assert letters.tree.match_length(ids("abc"), "other") == 0
    assert letters.tree.sequences() == {(None, *ids("abc")), ("None", *ids("abd"))}


def test_eviction_is_least_recently_used_over_all_salts(letters):
    letters.put("ab", salt="one")
    letters.put("ab", salt="two")
    letters.put("ab")
    letters.match("ab", salt="one")
    assert letters.evict(6) == [3, 4, 5, 6, 1, 2]


def test_an_empty_root_lives_while_it_is_held(letters):
    root = letters.tree.root("tenant")
    assert letters.match("ab", salt="tenant").node is root
    letters.put("xy", salt="tenant")
    assert letters.evict(2) == [1, 2]
    letters.below(root, "ab")
    assert letters.tree.root("tenant") is root
    assert letters.match("ab", salt="tenant").length == 2


def test_a_locked_root_is_kept_and_an_unused_one_goes(letters):
    root = letters.tree.root("tenant")
    letters.tree.lock(root)
    gone = weakref.ref(root)
    del root
    gc.collect()
    assert letters.tree.root("tenant").locks == 1
    letters.tree.unlock(letters.tree.root("tenant"))
    letters.put("ab", salt="tenant")
    letters.evict(2)
    gc.collect()
    assert gone() is None
    letters.tree.check()


def test_misuse_is_a_bug(letters):
    leaf = letters.put("ab")
    one = np.array([9], dtype=np.int32)
    with pytest.raises(AssertionError, match="match first"):
        letters.tree.insert(letters.tree.root(None), ids("a"), one)
    with pytest.raises(AssertionError, match="2 tokens, 1 pages"):
        letters.tree.insert(leaf, ids("xy"), one)
    with pytest.raises(AssertionError, match="not locked"):
        letters.tree.unlock(leaf)
    assert len(letters.evict(9)) == 2
    with pytest.raises(AssertionError, match="has left the tree"):
        letters.tree.lock(leaf)
    with pytest.raises(AssertionError, match="has left the tree"):
        letters.tree.match_from(leaf, ids("c"))
    with pytest.raises(AssertionError, match="has left the tree"):
        letters.tree.insert(leaf, ids("c"), one)


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("pages", np.array([5, 5, 6]), "pages in two places: \\[5\\]"),
        ("pages", np.array([0, 1, 2]), "page 0 is in the tree"),
        ("pages", np.array([1, 2]), "tokens and pages differ"),
        ("tokens", np.array(ids("bbc")), "filed under 97"),
        ("parent", None, "not its parent's child"),
        ("locks", -1, "a negative lock"),
        ("locks", 1, "1 locks below, fewer on the node itself"),
        ("end", 4, "begins at 1, not at 0"),
        ("last_use", 100, "used after its parent"),
        ("queued", False, "queued mark is wrong"),
    ],
)
def test_check_says_what_is_wrong(letters, name, value, reason):
    leaf = letters.put("abc")
    setattr(leaf, name, value)
    with pytest.raises(AssertionError, match=reason):
        letters.tree.check()


def test_a_path_of_many_nodes_needs_no_recursion(letters):
    node = letters.tree.root(None)
    for page in range(1, 5001):
        node = letters.tree.insert(node, [page % 7], np.array([page], dtype=np.int32))
    letters.tree.lock(node)
    letters.tree.check()
    assert letters.tree.match_length([page % 7 for page in range(1, 6000)]) == 5000
    letters.tree.unlock(node)
    assert letters.evict(5000) == list(range(5000, 0, -1))


def test_what_ended_goes_first_and_what_is_needed_last(letters):
    for text in ("ab", "cd", "ef", "gh"):
        letters.put(text)
    needed, several = letters.match("ab").node, letters.match("cd").node
    letters.tree.need(needed)
    letters.tree.need(several, 2)
    letters.tree.end(letters.match("gh").node, 1)
    letters.tree.check()
    order = [letters.evict(1)[0] for _ in range(8)]
    assert order == [8, 6, 5, 7, 2, 1, 4, 3]  # gh's own part; ef, g; ab; cd
    letters.tree.unneed(needed, 2)  # of what has gone
    letters.tree.unneed(several, 2, 2)
    letters.tree.check()


def test_whoever_uses_it_again_takes_back_that_it_ended(letters):
    letters.put("ab")
    letters.put("cd")
    letters.tree.end(letters.put("ef"), 0)
    letters.match("ef")
    assert letters.evict(2) == [1, 2]


def test_a_need_of_a_tail_that_was_cut_off_is_forgotten(letters):
    leaf = letters.put("abc")
    letters.tree.need(leaf, 2)
    letters.evict(1)
    letters.tree.need(letters.put("xy"), 1)
    letters.match("ab")
    assert letters.evict(2) == [4, 5], "ab is as needed, and more recent"
    letters.tree.need(leaf)
    letters.tree.unneed(leaf, 3, 2)
    letters.tree.check()
    assert (leaf.needs, leaf.needs_here) == (1, 1)


def test_nodes_that_were_needed_once_leave_nothing_in_the_queue(letters):
    for number in range(300):
        leaf = letters.put(chr(1000 + number))
        letters.put(chr(2000 + number))
        letters.tree.need(leaf, 2)
        letters.evict(1)  # meets the leaf first, and files it as needed
        letters.tree.unneed(leaf, 1, 2)
        letters.tree.end(leaf, 0)
        letters.evict(1)
    assert not letters.holds()
    assert sum(map(len, letters.tree._queue._heaps)) < 200
