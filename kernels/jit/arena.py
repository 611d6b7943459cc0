"""Memory for what kernels return, handed out again as soon as nobody has it any more.

The tensors of one forward are those of the next: the memory stays, warm and mapped. A block is free
when the arena alone refers to it: a tensor and all its views keep the array under them.
"""

from __future__ import annotations

import sys
import threading
from math import prod

import numpy as np
import torch

from branchline.kernels.jit.memory import Chunks

_UNUSED = 3  # references to a block: the arena's list, the loop's name and the count's argument


class Arena:
    """Blocks of a few sizes. For one thread."""

    def __init__(self) -> None:
        self._blocks: dict[int, list[np.ndarray]] = {}
        self._chunks = Chunks()

    def empty(self, *shape: int) -> torch.Tensor:
        """A float32 tensor of whatever the memory held."""
        count = prod(shape)
        return torch.from_numpy(self._block(count)[:count].reshape(shape))

    def _block(self, count: int) -> np.ndarray:
        size = _round_up(count)
        blocks = self._blocks.setdefault(size, [])
        for block in blocks:
            if sys.getrefcount(block) == _UNUSED:
                return block
        block = np.frombuffer(self._chunks.take(4 * size), dtype=np.float32)
        blocks.append(block)
        return block


def _round_up(count: int) -> int:
    """To one of four numbers between a power of two and the next: few sizes, little waste."""
    step = 1 << max(count.bit_length() - 3, 4)
    return -(-count // step) * step or step


_arenas = threading.local()


def empty(*shape: int) -> torch.Tensor:
    """A float32 tensor from this thread's arena."""
    try:
        arena: Arena = _arenas.arena
    except AttributeError:
        arena = _arenas.arena = Arena()
    return arena.empty(*shape)
