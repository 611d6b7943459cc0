"""Changes travel to the device as one buffer of words."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from branchline.runtime.cuda.queue import Event, Queue

_BUFFERS = 3  # the host writes one while the copies of two may still be waiting
_FIRST = 1 << 16  # words


class Staging:
    """Three buffers on the host in turn, each free again once its copy has been made."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._buffers = [queue.host_words(_FIRST) for _ in range(_BUFFERS)]
        self._copied: list[Event | None] = [None] * _BUFFERS
        self._next = 0
        self.sends = 0

    def send(self, parts: Sequence[np.ndarray]) -> list[Tensor]:
        """Copy parts, each int32 [n], to the device in one go; new tensors of the same sizes."""
        sizes = [len(part) for part in parts]
        out, words = self._take(sum(sizes))
        np.concatenate(parts, out=words)
        sent = out.to(self._queue.device, non_blocking=True, copy=True)
        self._copied[self._next] = self._queue.record()
        self._next = (self._next + 1) % _BUFFERS
        self.sends += 1
        return list(torch.split(sent, sizes))

    def _take(self, count: int) -> tuple[Tensor, np.ndarray]:
        """The next buffer, cut to `count` words, once nothing reads it."""
        copied = self._copied[self._next]
        if copied is not None:
            copied.synchronize()
        buffer, words = self._buffers[self._next]
        if count > len(words):
            buffer, words = self._buffers[self._next] = self._queue.host_words(
                1 << count.bit_length()
            )
        return buffer[:count], words[:count]
