"""The page pool: what is handed out, in which order, and what it refuses to take back."""

import numpy as np
import pytest

from branchline.radix import PADDING_PAGE, PagePool


def ids(*pages: int) -> np.ndarray:
    return np.array(pages, dtype=np.int32)


def test_hands_out_every_page_but_padding_once():
    pool = PagePool(8)
    assert (pool.total, pool.free) == (8, 7)
    pages = pool.allocate(7)
    assert pages.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert pages.dtype == np.int32
    assert pool.free == 0
    assert PADDING_PAGE not in pages


def test_cannot_is_none_and_takes_nothing():
    pool = PagePool(4)
    assert pool.allocate(4) is None
    assert pool.free == 3
    assert pool.allocate(3).tolist() == [1, 2, 3]
    assert pool.allocate(1) is None
    assert pool.allocate(0).tolist() == []


def test_what_is_released_together_comes_back_as_an_ascending_run():
    pool = PagePool(20)
    pool.allocate(19)
    pool.release(ids(3, 17))
    pool.release(ids(9, 8, 7, 6))
    assert pool.free == 6
    assert sorted(pool.free_pages().tolist()) == [3, 6, 7, 8, 9, 17]
    assert pool.allocate(2).tolist() == [6, 7]
    assert pool.allocate(2).tolist() == [8, 9]
    assert pool.allocate(2).tolist() == [3, 17]


@pytest.mark.parametrize(
    ("pages", "reason"),
    [
        (ids(2), "released again"),
        (ids(1, 2), "released again"),
        (ids(1, 1), "twice at once"),
        (ids(PADDING_PAGE), "cannot be released"),
        (ids(-1), "cannot be released"),
        (ids(4), "not of this pool"),
    ],
)
def test_a_wrong_release_is_a_bug_and_changes_nothing(pages, reason):
    pool = PagePool(4)
    assert pool.allocate(1).tolist() == [1]
    with pytest.raises(AssertionError, match=reason):
        pool.release(pages)
    assert sorted(pool.free_pages().tolist()) == [2, 3]
    pool.release(ids(1))
    assert pool.free == 3


def test_random_use_agrees_with_a_set():
    rng = np.random.default_rng(5)
    pool, free, held = PagePool(100), set(range(1, 100)), []
    for _ in range(2000):
        if rng.random() < 0.5:
            count = int(rng.integers(0, 30))
            pages = pool.allocate(count)
            assert (pages is None) == (count > len(free))
            if pages is not None:
                assert len(set(pages.tolist())) == count
                assert set(pages.tolist()) <= free
                assert (np.diff(pages) > 0).all()
                free -= set(pages.tolist())
                held.append(pages)
        elif held:
            pages = held.pop(int(rng.integers(len(held))))
            pool.release(rng.permutation(pages))
            free |= set(pages.tolist())
        assert pool.free == len(free)
        assert set(pool.free_pages().tolist()) == free
