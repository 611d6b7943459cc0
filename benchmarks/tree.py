"""Time the radix tree: match, insert and evict in a tree of 100,000 nodes.

usage: python benchmarks/tree.py

The prompt has 8,192 tokens, on a path of 1, 16 or 256 nodes. Times are medians, as processor time
of the thread, so that a busy machine does not show.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from branchline.radix import Node, RadixTree

if TYPE_CHECKING:
    from collections.abc import Callable

NODES = 100_000
RUN = 32  # tokens of a node, those of the prompt's path aside
PROMPT = 8_192
PATHS = (1, 16, 256)  # nodes
CHUNK = 512  # tokens that one insert adds, pages that one evict takes
REPEATS = 200


def draw(random: np.random.Generator, count: int) -> np.ndarray:
    return random.integers(0, 50_000, count, dtype=np.int32)


class Bench:
    """A random tree, as conversations branch: each new node below any of those before."""

    def __init__(self) -> None:
        self.random = np.random.default_rng(0)
        self.tree = RadixTree()
        self._next_page = 1
        self.root = self.tree.root(None)
        nodes = [self.root]
        while len(nodes) < NODES:
            parent = nodes[int(self.random.integers(len(nodes)))]
            tokens = draw(self.random, RUN)
            if int(tokens[0]) not in parent.children:
                nodes.append(self.insert(parent, tokens))

    def insert(self, node: Node, tokens: np.ndarray) -> Node:
        """A new leaf, with pages of its own."""
        pages = np.arange(self._next_page, self._next_page + len(tokens), dtype=np.int32)
        self._next_page += len(tokens)
        return self.tree.insert(node, tokens, pages)

    def path(self, nodes: int) -> np.ndarray:
        """A prompt that is cached as so many nodes."""
        prompt = draw(self.random, PROMPT)
        node = self.tree.match(prompt).node
        edges = np.linspace(node.end, PROMPT, nodes + 1, dtype=int).tolist()
        for start, end in itertools.pairwise(edges):
            node = self.insert(node, prompt[start:end])
        return prompt


def microseconds(action: Callable[[], object]) -> float:
    start = time.thread_time()
    action()
    return 1e6 * (time.thread_time() - start)


def repeat(action: Callable[[], object]) -> float:
    return round(median(microseconds(action) for _ in range(REPEATS)), 1)


def matching(bench: Bench, nodes: int) -> dict[str, object]:
    """Look, match, and lock a path and let it go, as an admission and a release do."""
    tree, prompt = bench.tree, bench.path(nodes)
    node = tree.match(prompt).node
    assert node.end == PROMPT

    def hold() -> None:
        tree.lock(node)
        tree.unlock(node)

    return {
        "path_nodes": nodes,
        "look_us": repeat(lambda: tree.match_length(prompt)),
        "match_us": repeat(lambda: tree.match(prompt)),
        "lock_unlock_us": repeat(hold),
    }


def changing(bench: Bench) -> dict[str, object]:
    """Split a run and insert below it, then evict; each on other nodes every time."""
    prompts = [bench.path(1) for _ in range(REPEATS)]
    tails = [draw(bench.random, CHUNK) for _ in range(REPEATS)]
    halves = []
    split = [
        microseconds(lambda prompt=prompt: halves.append(bench.tree.match(prompt[: PROMPT // 2])))
        for prompt in prompts
    ]
    insert = [
        microseconds(lambda half=half, tail=tail: bench.insert(half.node, tail))
        for half, tail in zip(halves, tails, strict=True)
    ]
    return {
        "split_us": round(median(split), 1),
        f"insert_{CHUNK}_us": round(median(insert), 1),
        f"evict_{CHUNK}_us": repeat(lambda: bench.tree.evict(CHUNK)),
        "evict_1_us": repeat(lambda: bench.tree.evict(1)),
    }


def main() -> None:
    bench = Bench()
    for nodes in PATHS:
        print(json.dumps({"nodes": NODES, "tokens": PROMPT} | matching(bench, nodes)), flush=True)
    print(json.dumps({"nodes": NODES} | changing(bench)))
    print(json.dumps({"load": round(os.getloadavg()[0], 1)}))


if __name__ == "__main__":
    main()
