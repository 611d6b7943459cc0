"""Keeps hold of every run of the process while somebody wants to trace them."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from branchline.executor import Executor

_collections: list[list[Executor]] = []


@contextmanager
def collected() -> Iterator[list[Executor]]:
    """The root of every run that begins inside the block, on any thread.

    Their requests stream, so that first tokens are timed.
    """
    runs: list[Executor] = []
    _collections.append(runs)
    try:
        yield runs
    finally:
        _collections.remove(runs)


def announce(root: Executor) -> bool:
    """A run begins; whether somebody collects it."""
    for runs in _collections:
        runs.append(root)
    return bool(_collections)
