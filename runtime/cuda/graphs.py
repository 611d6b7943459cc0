"""Captured work: launched as one, at the sizes it was captured for."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Protocol

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# Sizes in tokens for which graphs are captured; a batch is padded to the next one.
BUCKETS = (1, 2, 4, 8, *range(16, 48, 8), *range(48, 256, 16), *range(256, 513, 64))


def buckets_for(most: int, buckets: Sequence[int] = BUCKETS) -> tuple[int, ...]:
    """The sizes that batches of up to `most` tokens need, ascending."""
    return tuple(buckets[: bisect_left(buckets, most) + 1])


def bucket_of(count: int, buckets: Sequence[int]) -> int | None:
    """The smallest bucket that holds `count`; None: it is larger than all."""
    at = bisect_left(buckets, count)
    return buckets[at] if at < len(buckets) else None


def draws_for(running: int, tokens: int, buckets: Sequence[int] = BUCKETS) -> int:
    """The most rows of a draw, padding included, where `running` rows of it are requests'."""
    return bucket_of(running, buckets_for(tokens, buckets)) or running


class Graph(Protocol):
    """Work that was captured."""

    def replay(self) -> None:
        """Launch it again, on what its tensors hold now."""


class Graphs(Protocol):
    """Captures work on one device. The tensors it reads and writes must stay where they are."""

    def capture(self, work: Callable[[], None]) -> Graph:
        """Capture what `work` launches; it must not wait, nor depend on what tensors hold."""


class CudaGraphs:
    """CUDA graphs that share one pool of memory: capture the largest first, replay one at a time.

    Capture while the queue is launching. Nothing that work leaves in a new tensor outlives the next
    replay: results go to tensors made before.
    """

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def capture(self, work: Callable[[], None]) -> Graph:
        """See `Graphs.capture`."""
        work()  # what is compiled or set up at the first call cannot be while capturing
        torch.cuda.current_stream().synchronize()
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(pool=self._pool)
        try:
            work()
        finally:
            graph.capture_end()
        return graph


class RecordedGraphs:
    """Keeps the call itself, and calls it again: what a graph does, on any device."""

    def capture(self, work: Callable[[], None]) -> Graph:
        """See `Graphs.capture`."""
        return _Recorded(work)


class _Recorded:
    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work

    def replay(self) -> None:
        """See `Graph.replay`."""
        self._work()
