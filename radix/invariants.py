"""What always holds in a radix tree, recounted by walking."""

from __future__ import annotations

import numpy as np

from branchline.radix.node import Node, join
from branchline.radix.pages import PADDING_PAGE


def check_root(root: Node, *, kept: bool) -> None:
    """A root holds no tokens, and the tree keeps it if, and only if, it is in use."""
    assert root.parent is None, f"a root with a parent: {root}"
    assert root.end == len(root.tokens) == len(root.pages) == 0, f"a root with tokens: {root}"
    assert kept == bool(root.children or root.locks), f"a root that is kept wrongly: {root}"


def check_children(node: Node) -> None:
    """The links and counts between a node and its children agree."""
    assert node.locks >= 0, f"a negative lock: {node}"
    below = sum(child.locks for child in node.children.values())
    assert node.locks >= below, f"{below} locks below, fewer on the node itself: {node}"
    below = node.needs_here + sum(child.needs for child in node.children.values())
    assert node.needs >= below, f"{below} needs here and below, fewer in all: {node}"
    below = len(node.tokens) + sum(child.subtree for child in node.children.values())
    assert node.subtree == below, f"{below} tokens in and below, counted otherwise: {node}"
    for token, child in node.children.items():
        assert len(child.tokens) == len(child.pages) > 0, f"tokens and pages differ: {child}"
        assert child.tokens[0] == token, f"filed under {token}: {child}"
        assert child.parent is node, f"not its parent's child: {child}"
        assert child.start == node.end, f"begins at {child.start}, not at {node.end}: {child}"
        assert child.last_use <= node.last_use, f"used after its parent: {child}"


def check_pages(nodes: list[Node], cached: int, evictable: int) -> None:
    """No page is in two nodes, none is the padding page, and the counts are a recount's."""
    pages = np.sort(join([node.pages for node in nodes]))
    assert len(pages) == cached, f"{len(pages)} pages cached, counted as {cached}"
    assert not len(pages) or pages[0] > PADDING_PAGE, f"page {pages[0]} is in the tree"
    twice = pages[1:][pages[1:] == pages[:-1]]
    assert not len(twice), f"pages in two places: {twice}"
    unlocked = sum(len(node.pages) for node in nodes if node.locks == 0)
    assert unlocked == evictable, f"{unlocked} pages evictable, counted as {evictable}"
