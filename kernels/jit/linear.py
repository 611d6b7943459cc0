"""Linears, compiled, in float32 and in int8: what a weight's panels make of a block of tokens.

A weight is cut into panels, as many of its rows as a product has columns, each laid out in the
order in which it is read. A gated linear has the panels of gate and up in turn and gives
silu(gate) · up, so that what is twice as wide is never written.

For int8, tokens are rounded as `branchline.kernels.cpu_int8` says, while they are in the cache.
Their bytes have 128 added, as the processor wants one side unsigned; sums begin with what that adds
too much, so they are exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numba import njit

from branchline.kernels.cpu_int8 import groups_of, quantize_rows
from branchline.kernels.jit.arena import empty
from branchline.kernels.jit.memory import keep
from branchline.kernels.jit.product import (
    BLOCK_VECTORS,
    PANEL,
    PANEL_BYTES,
    multiply_bytes_panel,
    multiply_floats_panel,
)
from branchline.kernels.jit.reductions import extremes
from branchline.kernels.jit.team import Kernel, scratch
from branchline.kernels.jit.vector import (
    FAST,
    LANES,
    claim,
    coarse_power_of_two,
    exp,
    floats,
    lesser,
    nearest,
    octets,
    words,
)

if TYPE_CHECKING:
    from torch import Tensor

    from branchline.kernels.kernel_set import Linear

# Tokens whose block, with a panel, fits a core's cache.
_MOST_ROWS = 96
# Inputs of one product: a panel's part of them fits a core's cache too.
_INNER = 1024
_ONE = np.float32(1.0)
_MINUS_LOG2_E, _MOST_POWER = np.float32(-1.44269504), np.float32(126.0)
_LEVELS, _LEAST_SCALE = np.float32(127.0), np.float32(1e-30)
_MIDDLE = 128


def linear(weight: Tensor, bias: Tensor | None, *, gated: bool = False) -> Linear:
    """X -> x Wᵀ + b in float32; gated: silu of its first half times its second half."""
    panels = _panels(weight, gated=gated).transpose(1, 2)  # [panels, in, panel]
    kept = _biases(weight, bias, gated=gated), keep(panels)
    outputs, inputs = weight.shape[0] >> gated, weight.shape[1]
    constants = (inputs, outputs, int(gated), *(t.data_ptr() for t in kept))
    size = 2 * _MOST_ROWS * PANEL
    return _Linear(_multiply_floats, size, outputs, constants, kept)


def int8_linear(weight: Tensor, bias: Tensor | None, *, gated: bool = False) -> Linear:
    """The same in int8, up to rounding; the weight itself is not kept. Its columns: 4 · n.

    A gated one takes a token's values as one group, however many they are.
    """
    outputs, inputs = weight.shape[0] >> gated, weight.shape[1]
    groups = 1 if gated else groups_of(inputs)
    panels = _panels(weight, gated=gated)
    rows, row_scales = quantize_rows(panels.flatten(0, 1))
    sums = rows.view(len(rows), groups, -1).sum(dim=2, dtype=torch.int32)
    in_fours = keep(rows.view(len(panels), PANEL, inputs // 4, 4).transpose(1, 2))
    scales = row_scales.unsqueeze(1)
    frame = (
        sums * -_MIDDLE,
        scales.expand_as(sums).view(torch.int32),
        (sums * scales).view(torch.int32),
    )
    frames = torch.stack(frame, dim=1).view(len(panels), PANEL, 3, groups)
    kept = _biases(weight, bias, gated=gated), in_fours, frames.permute(0, 3, 2, 1).contiguous()
    constants = (inputs, outputs, int(gated), *(t.data_ptr() for t in kept), groups)
    size = _MOST_ROWS * (inputs // 4 + 2 * groups) + 2 * _MOST_ROWS * PANEL
    return _Linear(_multiply_bytes, size, outputs, constants, kept)


def _biases(weight: Tensor, bias: Tensor | None, *, gated: bool) -> Tensor:
    """What a panel's sums begin with, [panels, PANEL]."""
    bias = weight.new_zeros(len(weight)) if bias is None else bias
    return _panels(bias.unsqueeze(1), gated=gated).squeeze(2)


def _panels(weight: Tensor, *, gated: bool) -> Tensor:
    """[out, in] -> [panels, PANEL, in], padded with 0; gated: those of both halves in turn."""
    halves = weight.chunk(2) if gated else (weight,)
    count = -(-len(halves[0]) // PANEL)
    padded = weight.new_zeros(count, len(halves), PANEL, weight.shape[1])
    for index, half in enumerate(halves):
        whole = weight.new_zeros(count * PANEL, weight.shape[1])
        whole[: len(half)] = half
        padded[:, index] = whole.view(count, PANEL, -1)
    return padded.flatten(0, 1)


@dataclass(eq=False)
class _Linear:
    """A weight in panels, and the kernel that multiplies with it."""

    kernel: Kernel
    scratch_size: int  # float32 of a thread
    outputs: int
    constants: tuple[int, ...]  # of the kernel's arguments
    kept: tuple[Tensor, ...]  # whose addresses are among them

    def __call__(self, x: Tensor) -> Tensor:
        """X float32 [T, in], contiguous.

        Few tokens are one block, and the threads share out its panels; of more tokens every thread
        has as many blocks as the others, and takes all panels for each.
        """
        assert x.is_contiguous()
        tokens = len(x)
        y = empty(tokens, self.outputs)
        threads = torch.get_num_threads()
        few = tokens <= _MOST_ROWS
        blocks = 1 if few else threads * -(-tokens // (_MOST_ROWS * threads))
        self.kernel(
            x.data_ptr(),
            tokens,
            y.data_ptr(),
            blocks,
            threads,
            *scratch(self.scratch_size),
            *self.constants,
            work=1 << 30,
        )
        return y


@Kernel
def _multiply_floats(address):
    """A piece of work is some columns for all tokens, or all panels for one of several blocks."""
    a = words(address, 14)
    x_at, tokens, y_at, blocks, threads = a[2], a[3], a[4], a[5], a[6]
    inputs, outputs, gated, biases_at, panels_at = a[9], a[10], a[11], a[12], a[13]
    sums_at = a[7] + claim(address + 8) * a[8]
    up_at = sums_at + _MOST_ROWS * PANEL_BYTES
    panels = (outputs + PANEL - 1) // PANEL
    size = (tokens + blocks - 1) // blocks
    while True:
        piece = claim(address)
        if piece >= _pieces(panels, blocks, threads):
            break
        first, panel, end, vector, vectors = _piece(piece, panels, blocks, threads, size)
        rows = min(size, tokens - first)
        while panel < end:
            columns = min(vectors * LANES, outputs - panel * PANEL - vector * LANES)
            y = y_at + 4 * (first * outputs + panel * PANEL + vector * LANES)
            direct = not gated and columns == vectors * LANES
            for part in range(1 + gated):
                to = y if direct else (up_at if part else sums_at)
                stride = 4 * outputs if direct else PANEL_BYTES
                mine = (1 + gated) * panel + part
                weight_at = panels_at + mine * inputs * PANEL_BYTES
                skip = (1 + gated) * (threads if blocks == 1 else 1) * inputs * PANEL_BYTES
                for inner in range(0, inputs, _INNER):
                    at = weight_at + inner * PANEL_BYTES
                    multiply_floats_panel(
                        x_at + 4 * (first * inputs + inner), 4 * inputs, at + vector * LANES * 4,
                        to, stride, rows, vectors, min(_INNER, inputs - inner),
                        biases_at + mine * PANEL_BYTES + vector * LANES * 4 if inner == 0 else to,
                        0 if inner == 0 else stride, at + skip, 0, 0,
                    )  # fmt: skip
            if gated:
                _gate(sums_at, up_at, y, 4 * outputs, rows, columns)
            elif not direct:
                _move(sums_at, y, 4 * outputs, rows, columns)
            panel += 1


@Kernel
def _multiply_bytes(address):
    """As `_multiply_floats`; a block's tokens are rounded before its first panel."""
    a = words(address, 16)
    x_at, tokens, y_at, blocks, threads = a[2], a[3], a[4], a[5], a[6]
    inputs, outputs, gated, biases_at, panels_at = a[9], a[10], a[11], a[12], a[13]
    frames_at, groups = a[14], a[15]
    bytes_at = a[7] + claim(address + 8) * a[8]
    rounding_at = bytes_at + _MOST_ROWS * inputs
    sums_at = rounding_at + 8 * _MOST_ROWS * groups
    up_at = sums_at + _MOST_ROWS * PANEL_BYTES
    panels = (outputs + PANEL - 1) // PANEL
    size = (tokens + blocks - 1) // blocks
    width = inputs // groups
    rounded = -1
    while True:
        piece = claim(address)
        if piece >= _pieces(panels, blocks, threads):
            break
        first, panel, end, vector, vectors = _piece(piece, panels, blocks, threads, size)
        rows = min(size, tokens - first)
        if rounded != first:
            rounded = first
            for group in range(groups):
                for row in range(rows):
                    _round(
                        x_at + 4 * ((first + row) * inputs + group * width),
                        bytes_at + row * inputs + group * width,
                        rounding_at + 8 * (_MOST_ROWS * group + row), width,
                    )  # fmt: skip
        while panel < end:
            columns = min(vectors * LANES, outputs - panel * PANEL - vector * LANES)
            y = y_at + 4 * (first * outputs + panel * PANEL + vector * LANES)
            direct = not gated and columns == vectors * LANES
            for part in range(1 + gated):
                to = y if direct else (up_at if part else sums_at)
                stride = 4 * outputs if direct else PANEL_BYTES
                mine = (1 + gated) * panel + part
                skip = (1 + gated) * (threads if blocks == 1 else 1) * inputs * PANEL
                for group in range(groups):
                    at = panels_at + (mine * inputs + group * width) * PANEL
                    frame = frames_at + 3 * PANEL_BYTES * (mine * groups + group)
                    multiply_bytes_panel(
                        bytes_at + group * width, inputs, at + vector * LANES * 4, to, stride,
                        rows, vectors, width // 4,
                        biases_at + mine * PANEL_BYTES + vector * LANES * 4 if group == 0 else to,
                        0 if group == 0 else stride, at + skip, frame + vector * LANES * 4,
                        rounding_at + 8 * _MOST_ROWS * group,
                    )  # fmt: skip
            if gated:
                _gate_coarsely(sums_at, up_at, y, 4 * outputs, rows, columns)
            elif not direct:
                _move(sums_at, y, 4 * outputs, rows, columns)
            panel += 1


@njit
def _pieces(panels, blocks, threads):
    """Into how many pieces of work a product is cut."""
    rest = panels % threads
    return panels - rest + rest * BLOCK_VECTORS if blocks == 1 else blocks


@njit
def _piece(piece, panels, blocks, threads, size):
    """A piece's first token, first panel, the one after its last, first vector and vectors.

    Of a single block, panels that are too few to be shared out are shared out by vectors.
    """
    if blocks > 1:
        return piece * size, 0, panels, 0, BLOCK_VECTORS
    whole = panels - panels % threads
    if piece < whole:
        return 0, piece, piece + 1, 0, BLOCK_VECTORS
    panel = whole + (piece - whole) // BLOCK_VECTORS
    return 0, panel, panel + 1, (piece - whole) % BLOCK_VECTORS, 1


@njit(fastmath=FAST)
def _round(x_at, bytes_at, rounding_at, size):
    """A token's bytes, the step from one to the next, and what 128 stands for."""
    x, to = floats(x_at, size), octets(bytes_at, size)
    least, most = extremes(x_at, size)
    middle = np.float32(0.5) * (least + most)
    scale = max((most - middle) / _LEVELS, _LEAST_SCALE)
    share = _ONE / scale
    for i in range(size):
        to[i] = np.uint8(np.int32(nearest((x[i] - middle) * share)) + np.int32(_MIDDLE))
    rounding = floats(rounding_at, 2)
    rounding[0], rounding[1] = scale, middle


@njit
def _move(from_at, to_at, to_stride, rows, columns):
    """Those of a panel's results that count, to their place."""
    for row in range(rows):
        source = floats(from_at + PANEL_BYTES * row, columns)
        to = floats(to_at + to_stride * row, columns)
        for i in range(columns):
            to[i] = source[i]


@njit(fastmath=FAST, error_model="numpy")
def _gate(gates_at, ups_at, to_at, to_stride, rows, columns):
    """silu(gate) · up to their place."""
    for row in range(rows):
        gates = floats(gates_at + PANEL_BYTES * row, columns)
        ups = floats(ups_at + PANEL_BYTES * row, columns)
        to = floats(to_at + to_stride * row, columns)
        for i in range(columns):
            to[i] = gates[i] / (_ONE + exp(-gates[i])) * ups[i]


@njit(fastmath=FAST, error_model="numpy")
def _gate_coarsely(gates_at, ups_at, to_at, to_stride, rows, columns):
    """The same, with an exponential that is as exact as eight bits deserve."""
    for row in range(rows):
        gates = floats(gates_at + PANEL_BYTES * row, columns)
        ups = floats(ups_at + PANEL_BYTES * row, columns)
        to = floats(to_at + to_stride * row, columns)
        for i in range(columns):
            power = coarse_power_of_two(lesser(gates[i] * _MINUS_LOG2_E, _MOST_POWER))
            to[i] = gates[i] * ups[i] / (_ONE + power)
