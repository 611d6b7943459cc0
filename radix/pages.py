"""The pool of pages. A page is the K and V of one token in all layers; here it is only its id."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

PageArray: TypeAlias = npt.NDArray[np.int32]

PADDING_PAGE = 0
"""Masked and recomputed positions write here; nobody reads it and nobody owns it."""


class PagePool:
    """Hands out the pages 1 … total − 1 and takes them back.

    The free ids are a stack with the lowest of each release on top, so what is freed together is
    handed out together, in ascending runs: a gather over such pages is close to a plain copy.
    """

    def __init__(self, total: int) -> None:
        """A pool of `total` pages, the padding page included."""
        assert total > PADDING_PAGE + 1, f"a pool of {total} pages has none to hand out"
        self.total = total
        self._stack = np.arange(total - 1, PADDING_PAGE, -1, dtype=np.int32)
        self._free = total - 1  # the live part of the stack
        self._is_free = np.ones(total, dtype=np.bool_)
        self._is_free[PADDING_PAGE] = False

    @property
    def free(self) -> int:
        """How many pages can be allocated now."""
        return self._free

    def free_pages(self) -> PageArray:
        """The pages that can be allocated now, in no particular order."""
        return self._stack[: self._free].copy()

    def allocate(self, count: int) -> PageArray | None:
        """`count` pages in ascending order; None, with nothing taken, when so many are not free."""
        assert count >= 0, f"cannot allocate {count} pages"
        if count > self._free:
            return None
        self._free -= count
        pages = np.sort(self._stack[self._free : self._free + count])
        self._is_free[pages] = False
        return pages

    def release(self, pages: PageArray) -> None:
        """Takes `pages` back; each must be allocated and be named once."""
        ordered = np.sort(pages)
        if not len(ordered):
            return
        assert ordered[0] > PADDING_PAGE, f"page {ordered[0]} cannot be released"
        assert ordered[-1] < self.total, f"page {ordered[-1]} is not of this pool of {self.total}"
        assert (ordered[1:] > ordered[:-1]).all(), f"a page is released twice at once: {ordered}"
        assert not self._is_free[ordered].any(), f"a free page is released again: {ordered}"
        self._stack[self._free : self._free + len(ordered)] = ordered[::-1]
        self._free += len(ordered)
        self._is_free[ordered] = True
