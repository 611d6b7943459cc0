"""Runs compiled kernels on the team of threads that torch's OpenMP has, one or a whole program.

Between the calls of a forward Python would run with caches full of weights, which takes longer than
most kernels do. So a forward is recorded first, and then run in one call: the threads go through
its kernels together, and wait for each other between them. (What CUDA calls a graph.)
"""

from __future__ import annotations

import ctypes
import struct
import threading
from array import array
from contextlib import contextmanager
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from branchline.kernels.jit.cache import compile_kernel
from branchline.kernels.jit.memory import zeros
from branchline.kernels.jit.vector import FAST, FEATURES, barrier, call, words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

# Less work than this, in numbers read or written, is done sooner by one thread than by a team.
_LITTLE = 1 << 14

_local = threading.local()


class Kernel:
    """A function of the address of its arguments, int64 words, which all threads run at once.

    Words 0 and 1 are counters for `claim`, 0 at first: the pieces of work that were taken, and the
    threads that are there. What is at an address must live until the call, or the recording it is
    part of, is over.
    """

    known: ClassVar[list[Kernel]] = []

    def __init__(self, function: Callable[[Any], None]) -> None:
        self._function = function
        self.__doc__ = function.__doc__
        self.known.append(self)

    @cached_property
    def compiled(self) -> Any:
        """The machine code; made, or read back, when it is first asked for."""
        return compile_kernel(self._function, FAST)

    @cached_property
    def address(self) -> int:
        """Where the machine code is."""
        address: int = self.compiled.address
        return address

    @cached_property
    def _alone(self) -> Any:
        return ctypes.CFUNCTYPE(None, ctypes.c_int64)(self.address)

    def __call__(self, *arguments: int, work: int) -> None:
        """Run it to the end, or record it. `work`: the numbers it reads and writes, about."""
        program = getattr(_local, "program", None)
        if program is not None:
            program.add(self, arguments)
        else:
            words = array("q", (0, 0, *arguments))
            address, _ = words.buffer_info()
            if work < _LITTLE:
                self._alone(address)
            else:
                _run_on_team(self, address)


class Program:
    """Calls of kernels in the order of their recording, to be run any number of times.

    While it records, kernels only say what they would do, and what they return holds nothing yet:
    views may be taken of it, no more. Memory given back during the recording is handed out again,
    which is right, as the calls keep their order.
    """

    def __init__(self) -> None:
        self._words = array("q")
        self._steps: list[tuple[int, int]] = []  # machine code, first word of the arguments

    @contextmanager
    def record(self) -> Iterator[None]:
        """Kernels called by this thread in here are recorded."""
        _local.program = self
        try:
            yield
        finally:
            del _local.program
        self._scratch = list(_local.__dict__.get("scratch", ()))
        self._arguments = np.array(self._words, dtype=np.int64)
        self._code = np.array(self._steps, dtype=np.int64).reshape(-1, 2)
        first = self._code[:, 1].copy()
        self._counters = np.concatenate([first, first + 1])
        self._code[:, 1] = self._arguments.ctypes.data + 8 * first
        self._header = array("q", (len(first), self._code.ctypes.data))

    def add(self, kernel: Kernel, arguments: tuple[int, ...]) -> None:
        """Record a call."""
        self._steps.append((kernel.address, len(self._words)))
        self._words.extend((0, 0, *arguments))

    def run(self) -> None:
        """Run what was recorded, with what its memory holds now."""
        self._arguments[self._counters] = 0
        _run_on_team(_run_steps, self._header.buffer_info()[0])


@Kernel
def _run_steps(address):
    a = words(address, 2)
    steps = words(a[1], 2 * a[0])
    for step in range(a[0]):
        call(steps[2 * step], steps[2 * step + 1])
        barrier()


def _run_on_team(kernel: Kernel, address: int) -> None:
    _parallel()(kernel.address, address, torch.get_num_threads(), 0)


def scratch(count: int) -> tuple[int, int]:
    """Memory for each thread of a kernel, `count` float32 or more: its address, and bytes of one.

    All kernels that this thread runs share it, so it stays in the cache. The thread keeps it, and
    so do the programs it records.
    """
    buffers: list[Tensor] = _local.__dict__.setdefault("scratch", [])
    threads = torch.get_num_threads()
    each = -(-count // 1024) * 1024
    if not buffers or buffers[-1].numel() < threads * each:
        buffers.append(zeros((threads * each,)))
    return buffers[-1].data_ptr(), 4 * each


def bits(x: float) -> int:
    """A float32 as a kernel's argument: its bits."""
    number: int = struct.unpack("i", struct.pack("f", x))[0]
    return number


@cache
def _parallel() -> Any:
    """`GOMP_parallel(function, data, threads, flags)` of the OpenMP that torch has loaded."""
    function = ctypes.CDLL(None).GOMP_parallel
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    function.restype = None
    return function


@cache
def jit_is_available() -> bool:
    """Whether this process has an OpenMP to run a kernel on, and the processor fused products."""
    try:
        _parallel()
    except AttributeError:
        return False
    return bool(FEATURES.get("fma") or FEATURES.get("neon"))
