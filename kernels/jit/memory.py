"""Memory in large pages: fewer translations for the processor to remember, and no bad luck.

Where small pages lie in the machine's memory decides which of them displace each other in a cache,
so the same process is now fast, now a fifth slower.
"""

from __future__ import annotations

import mmap
from math import prod
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from torch import Tensor

_LARGE_PAGE = 2 << 20
_CHUNK = 16 << 20
_LINE = 64


def zeros(
    shape: tuple[int, ...],
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | None = None,
) -> Tensor:
    """A tensor of zeros. It takes memory as it is written, a large page at a time."""
    assert device is None or device.type == "cpu"
    size = prod(shape) * dtype.itemsize
    return torch.from_numpy(_large_pages(size)[:size]).view(dtype).view(shape)


def _large_pages(size: int) -> np.ndarray:
    """At least `size` bytes, 0, from the beginning of a large page on."""
    memory = mmap.mmap(-1, size + 2 * _LARGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    array = np.frombuffer(memory, dtype=np.uint8)
    return array[-array.ctypes.data % _LARGE_PAGE :]


class Chunks:
    """Pieces of memory side by side in large pages, which go when all their pieces have gone."""

    def __init__(self) -> None:
        self._left = np.empty(0, dtype=np.uint8)

    def take(self, size: int) -> memoryview:
        """`size` bytes from the beginning of a cache line on."""
        whole = -(-size // _LINE) * _LINE
        if len(self._left) < whole:
            self._left = _large_pages(max(whole, _CHUNK))
        piece, self._left = self._left[:size], self._left[whole:]
        return piece.data


_weights = Chunks()


def keep(tensor: Tensor) -> Tensor:
    """A copy of a weight, beside the others in large pages."""
    tensor = tensor.contiguous()
    size = tensor.numel() * tensor.element_size()
    memory = np.frombuffer(_weights.take(size), dtype=np.uint8)
    return torch.from_numpy(memory).view(tensor.dtype).view(tensor.shape).copy_(tensor)
