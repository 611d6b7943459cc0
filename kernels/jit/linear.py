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
    multiply_bytes,
    multiply_floats,
)
from branchline.kernels.jit.team import Kernel, scratch
from branchline.kernels.jit.vector import (
    FAST,
    LANES,
    claim,
    coarse_power_of_two,
    exp,
    floats,
    ints,
    lesser,
    nearest,
    octets,
    words,
)

if TYPE_CHECKING:
    from torch import Tensor

    from branchline.kernels.kernel_set import Linear

_PANEL = BLOCK_VECTORS * LANES  # columns of the result that are computed together
_PANEL_BYTES = 4 * _PANEL
# Tokens whose block, with a panel, fits a core's cache.
_FLOAT_ROWS, _BYTE_ROWS = 48, 96
# Inputs of one product: a panel's part of them fits the nearest cache.
_INNER = 512
_ZERO, _ONE = np.float32(0.0), np.float32(1.0)
_MINUS_LOG2_E, _MOST_POWER = np.float32(-1.44269504), np.float32(126.0)
_LEVELS, _LEAST_SCALE = np.float32(127.0), np.float32(1e-30)
_MIDDLE = 128


def linear(weight: Tensor, bias: Tensor | None, *, gated: bool = False) -> Linear:
    """X -> x Wᵀ + b in float32; gated: silu of its first half times its second half."""
    panels = _panels(weight, gated=gated).transpose(1, 2)  # [panels, in, panel]
    panels = keep(panels)
    bias = None if bias is None else _panels(bias.unsqueeze(1), gated=gated).flatten()
    outputs, inputs = weight.shape[0] >> gated, weight.shape[1]
    constants = (inputs, outputs, int(gated), _address(bias), panels.data_ptr())
    size = 2 * _FLOAT_ROWS * _PANEL
    return _Linear(_multiply_floats, _FLOAT_ROWS, size, outputs, gated, constants, (panels, bias))


def int8_linear(weight: Tensor, bias: Tensor | None, *, gated: bool = False) -> Linear:
    """The same in int8, up to rounding; the weight itself is not kept. Its columns: 4 · n.

    A gated one takes a token's values as one group, however many they are.
    """
    outputs, inputs = weight.shape[0] >> gated, weight.shape[1]
    groups = 1 if gated else groups_of(inputs)
    panels = _panels(weight, gated=gated)
    rows, row_scales = quantize_rows(panels.flatten(0, 1))
    sums = rows.view(len(rows), groups, -1).sum(dim=2, dtype=torch.int32).t().contiguous()
    in_fours = keep(rows.view(len(panels), _PANEL, inputs // 4, 4).transpose(1, 2))
    biases = torch.zeros(groups, len(rows))  # added with the first group
    if bias is not None:
        biases[0] = _panels(bias.unsqueeze(1), gated=gated).flatten()
    kept = (biases, in_fours, row_scales, sums * row_scales, sums * -_MIDDLE)
    constants = (inputs, outputs, int(gated), groups, *(t.data_ptr() for t in kept))
    size = _BYTE_ROWS * (inputs // 4 + 2 * groups) + 2 * _BYTE_ROWS * _PANEL
    return _Linear(_multiply_bytes, _BYTE_ROWS, size, outputs, gated, constants, kept)


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _panels(weight: Tensor, *, gated: bool) -> Tensor:
    """[out, in] -> [panels, _PANEL, in], padded with 0; gated: those of both halves in turn."""
    halves = weight.chunk(2) if gated else (weight,)
    count = -(-len(halves[0]) // _PANEL)
    padded = weight.new_zeros(count, len(halves), _PANEL, weight.shape[1])
    for index, half in enumerate(halves):
        whole = weight.new_zeros(count * _PANEL, weight.shape[1])
        whole[: len(half)] = half
        padded[:, index] = whole.view(count, _PANEL, -1)
    return padded.flatten(0, 1)


@dataclass(eq=False)
class _Linear:
    """A weight in panels, and the kernel that multiplies with it."""

    kernel: Kernel
    most_rows: int  # tokens in a block
    scratch_size: int  # float32 of a thread
    outputs: int
    gated: bool
    constants: tuple[int, ...]  # of the kernel's arguments
    kept: tuple[Tensor | None, ...]  # whose addresses are among them

    def __call__(self, x: Tensor) -> Tensor:
        """X float32 [T, in], contiguous.

        Few tokens are one block, and the threads share out its panels; of more tokens every thread
        has as many blocks as the others, and takes all panels for each.
        """
        assert x.is_contiguous()
        tokens = len(x)
        y = empty(tokens, self.outputs)
        threads = torch.get_num_threads()
        few = tokens <= self.most_rows
        blocks = 1 if few else threads * -(-tokens // (self.most_rows * threads))
        self.kernel(
            x.data_ptr(),
            tokens,
            y.data_ptr(),
            blocks,
            *scratch(self.scratch_size),
            *self.constants,
            work=1 << 30,
        )
        return y


@Kernel
def _multiply_floats(address):
    """A piece of work is one panel for all tokens, or all panels for one of several blocks."""
    a = words(address, 13)
    x_at, tokens, y_at, blocks, inputs, outputs, gated = a[2], a[3], a[4], a[5], a[8], a[9], a[10]
    bias_at, panels_at = a[11], a[12]
    sums_at = a[6] + claim(address + 8) * a[7]
    up_at = sums_at + _FLOAT_ROWS * _PANEL_BYTES
    panels = (outputs + _PANEL - 1) // _PANEL
    size = (tokens + blocks - 1) // blocks
    while True:
        piece = claim(address)
        if piece >= (panels if blocks == 1 else blocks):
            break
        first = 0 if blocks == 1 else piece * size
        rows = min(size, tokens - first)
        for panel in range(piece if blocks == 1 else 0, piece + 1 if blocks == 1 else panels):
            for part in range(1 + gated):
                mine = (1 + gated) * panel + part
                to = up_at if part else sums_at
                _begin_floats(to, bias_at, mine, rows)
                weight_at = panels_at + mine * inputs * _PANEL_BYTES
                for inner in range(0, inputs, _INNER):
                    multiply_floats(
                        x_at + 4 * (first * inputs + inner), 4 * inputs,
                        weight_at + inner * _PANEL_BYTES, _PANEL_BYTES, to, _PANEL_BYTES, rows,
                        BLOCK_VECTORS, min(_INNER, inputs - inner),
                    )  # fmt: skip
            _write(sums_at, up_at, y_at, first, rows, panel, outputs, gated)


@Kernel
def _multiply_bytes(address):
    """As `_multiply_floats`; a block's tokens are rounded before its first panel."""
    a = words(address, 17)
    x_at, tokens, y_at, blocks, inputs, outputs, gated = a[2], a[3], a[4], a[5], a[8], a[9], a[10]
    groups, bias_at, panels_at, row_scales_at = a[11], a[12], a[13], a[14]
    shift_at, start_at = a[15], a[16]
    bytes_at = a[6] + claim(address + 8) * a[7]
    scales_at = bytes_at + _BYTE_ROWS * inputs
    middles_at = scales_at + 4 * _BYTE_ROWS * groups
    sums_at = middles_at + 4 * _BYTE_ROWS * groups
    up_at = sums_at + _BYTE_ROWS * _PANEL_BYTES
    panels = (outputs + _PANEL - 1) // _PANEL
    size = (tokens + blocks - 1) // blocks
    width = inputs // groups
    rounded = -1
    while True:
        piece = claim(address)
        if piece >= (panels if blocks == 1 else blocks):
            break
        first = 0 if blocks == 1 else piece * size
        rows = min(size, tokens - first)
        if rounded != first:
            rounded = first
            for group in range(groups):
                for row in range(rows):
                    place = 4 * (_BYTE_ROWS * group + row)
                    _round(
                        x_at + 4 * ((first + row) * inputs + group * width),
                        bytes_at + row * inputs + group * width, scales_at + place,
                        middles_at + place, width,
                    )  # fmt: skip
        for panel in range(piece if blocks == 1 else 0, piece + 1 if blocks == 1 else panels):
            for group in range(groups):
                skip = (1 + gated) * (group * panels + panel) * _PANEL_BYTES
                for part in range(1 + gated):
                    to = up_at if part else sums_at
                    _begin_bytes(to, start_at + skip + part * _PANEL_BYTES, rows)
                    begin = group * width
                    weight_at = panels_at + ((1 + gated) * panel + part) * _PANEL * inputs
                    for inner in range(begin, begin + width, _INNER):
                        multiply_bytes(
                            bytes_at + inner, inputs, weight_at + inner * _PANEL, _PANEL_BYTES, to,
                            _PANEL_BYTES, rows, BLOCK_VECTORS,
                            min(_INNER, begin + width - inner) // 4,
                        )  # fmt: skip
                _finish(
                    sums_at, up_at, scales_at + 4 * _BYTE_ROWS * group,
                    middles_at + 4 * _BYTE_ROWS * group,
                    row_scales_at + (1 + gated) * panel * _PANEL_BYTES, shift_at + skip,
                    bias_at + skip, y_at, first, rows, panel, outputs, gated, group,
                )  # fmt: skip


@njit(fastmath={*FAST, "nnan"})  # a maximum becomes vectors only if there is no NaN
def _round(x_at, bytes_at, scale_at, middle_at, size):
    """A token's bytes, the step from one to the next, and what 128 stands for."""
    x, to = floats(x_at, size), octets(bytes_at, size)
    least = most = x[0]
    for i in range(size):
        least = min(least, x[i])
        most = max(most, x[i])
    middle = np.float32(0.5) * (least + most)
    scale = max((most - middle) / _LEVELS, _LEAST_SCALE)
    share = _ONE / scale
    for i in range(size):
        to[i] = np.uint8(np.int32(nearest((x[i] - middle) * share)) + np.int32(_MIDDLE))
    floats(scale_at, 1)[0] = scale
    floats(middle_at, 1)[0] = middle


@njit
def _begin_bytes(sums_at, start_at, rows):
    start = ints(start_at, _PANEL)
    for row in range(rows):
        sums = ints(sums_at + _PANEL_BYTES * row, _PANEL)
        for i in range(_PANEL):
            sums[i] = start[i]


@njit
def _begin_floats(sums_at, bias_at, panel, rows):
    if bias_at != 0:
        bias = floats(bias_at + 4 * panel * _PANEL, _PANEL)
        for row in range(rows):
            sums = floats(sums_at + _PANEL_BYTES * row, _PANEL)
            for i in range(_PANEL):
                sums[i] = bias[i]
    else:
        sums = floats(sums_at, rows * _PANEL)
        for i in range(rows * _PANEL):
            sums[i] = _ZERO


@njit(fastmath=FAST)
def _finish(
    sums_at, up_at, scales_at, middles_at, row_scales_at, shift_at, bias_at, y_at, first, rows,
    panel, outputs, gated, group,
):  # fmt: skip
    """What a panel's whole sums stand for, to its place in y, or added to it after group 0."""
    columns = min(_PANEL, outputs - panel * _PANEL)
    scales, middles = floats(scales_at, rows), floats(middles_at, rows)
    for row in range(rows):
        at = _PANEL_BYTES * row
        # Else there is room for a panel: only what counts is taken from there. (Not in the place
        # of the sums, if it can be helped: a loop that overwrites what it reads is not vectors.)
        to = y_at + 4 * ((first + row) * outputs + panel * _PANEL)
        place = to if columns == _PANEL and group == 0 else (sums_at if gated else up_at) + at
        if gated:
            _finish_gated(
                sums_at + at, up_at + at, row_scales_at, shift_at, bias_at, place, scales[row],
                middles[row],
            )  # fmt: skip
        else:
            _finish_row(
                sums_at + at, row_scales_at, shift_at, bias_at, place, scales[row], middles[row]
            )
        if place != to:
            _move(place, to, columns, group)


@njit(fastmath=FAST)
def _move(from_at, to_at, columns, group):
    source, to = floats(from_at, columns), floats(to_at, columns)
    if group == 0:
        for i in range(columns):
            to[i] = source[i]
    else:
        for i in range(columns):
            to[i] += source[i]


@njit(fastmath=FAST)
def _finish_row(sums_at, row_scales_at, shift_at, bias_at, to_at, scale, middle):
    sums, to, bias = ints(sums_at, _PANEL), floats(to_at, _PANEL), floats(bias_at, _PANEL)
    row_scales, shift = floats(row_scales_at, _PANEL), floats(shift_at, _PANEL)
    for i in range(_PANEL):
        to[i] = np.float32(sums[i]) * (row_scales[i] * scale) + middle * shift[i] + bias[i]


@njit(fastmath=FAST, error_model="numpy")
def _finish_gated(sums_at, up_at, row_scales_at, shift_at, bias_at, to_at, scale, middle):
    """silu(gate) · up, with an exponential that is as exact as eight bits deserve."""
    sums, ups, to = ints(sums_at, _PANEL), ints(up_at, _PANEL), floats(to_at, _PANEL)
    row_scales, shift = floats(row_scales_at, 2 * _PANEL), floats(shift_at, 2 * _PANEL)
    bias = floats(bias_at, 2 * _PANEL)
    for i in range(_PANEL):
        j = _PANEL + i
        gate = np.float32(sums[i]) * (row_scales[i] * scale) + middle * shift[i] + bias[i]
        up = np.float32(ups[i]) * (row_scales[j] * scale) + middle * shift[j] + bias[j]
        power = coarse_power_of_two(lesser(gate * _MINUS_LOG2_E, _MOST_POWER))
        to[i] = gate * up / (_ONE + power)


@njit(fastmath=FAST, error_model="numpy")
def _write(sums_at, up_at, y_at, first, rows, panel, outputs, gated):
    """A panel's results to their place in y."""
    columns = min(_PANEL, outputs - panel * _PANEL)
    for row in range(rows):
        sums = floats(sums_at + _PANEL_BYTES * row, _PANEL)
        to = floats(y_at + 4 * ((first + row) * outputs + panel * _PANEL), columns)
        if gated:
            up = floats(up_at + _PANEL_BYTES * row, _PANEL)
            for i in range(columns):
                to[i] = sums[i] / (_ONE + exp(-sums[i])) * up[i]
        else:
            for i in range(columns):
                to[i] = sums[i]
