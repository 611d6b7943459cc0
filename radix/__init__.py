"""Pages and the radix tree over them: which tokens' keys and values are cached, and where.

What this package promises:

* A page is free, private to a request, or in exactly one node of the tree. Page 0 is padding and is
  never handed out.
* A node that somebody has locked keeps its tokens and pages, and so does every ancestor. Its handle
  stays valid when others split the run it was part of. Without a lock, a handle is good until the
  next `evict` or `flush`; a root's is good for as long as it is held.
* Eviction takes the least recently used unlocked pages, whole leaves first to last and the last one
  from its tail, in an order that depends on the calls alone: recency is a counter, not a clock.
* Before recency comes what was said of the future (`Standing`): what has ended goes first, what is
  needed last. Advice protects nothing and changes no count; without any there is recency alone.
* Two salts never share a page, and neither can see what the other has cached.

Nothing here is thread-safe; one thread owns a tree and its pool.
"""

from __future__ import annotations

from branchline.radix.node import Match, Node, Standing, TokenArray, TokenIds, descend
from branchline.radix.pages import PADDING_PAGE, PageArray, PagePool
from branchline.radix.tree import RadixTree

__all__ = [
    "PADDING_PAGE",
    "Match",
    "Node",
    "PageArray",
    "PagePool",
    "RadixTree",
    "Standing",
    "TokenArray",
    "TokenIds",
    "descend",
]
