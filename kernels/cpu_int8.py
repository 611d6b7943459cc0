"""The CPU's kernels with 8-bit linears: rows of weights and tokens are rounded to int8.

A token's values become mid + scale · q, with q in [−127, 127] and mid the middle of their range:
activations are lopsided, and around 0 half of the range would go unused. With w ≈ row_scale · p,

    Σ x w  ≈  row_scale · (scale · Σ q p  +  mid · Σ p)

where Σ q p is an exact integer sum and Σ p is known beforehand. So what a token gets depends on
neither what else is in the batch, nor which of two multiplications is the faster for it.

One range for very many inputs is set by a few of them: where there are over 1,024, each group of
about 512 has its own mid and scale.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from branchline.kernels.cpu import cpu_kernels, is_intel

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from branchline.kernels.kernel_set import KernelSet, Linear

    # int8 [T, in] -> float32 [T, out]: the exact sums, each times its row's scale
    Product = Callable[[Tensor], Tensor]

_LEVELS = 127  # on either side of the middle
_LEAST_SCALE = 1e-30  # of a range of nothing, which has no steps
_FIRST_PACKED_ROWS = 3
_ONE_GROUP, _GROUP = 1024, 512  # inputs: of a linear with one group at most, and of a group, about


def cpu_int8_kernels() -> KernelSet:
    """`cpu_kernels`, but with a `linear` that computes in int8; all else is float32."""
    return replace(cpu_kernels(), name="cpu-int8", linear=linear)


def int8_is_exact() -> bool:
    """Whether this processor adds products of int8 without saturating (it does with VNNI)."""
    most = torch.full((1, 128), _LEVELS, dtype=torch.int8)
    return int(torch._int_mm(most, most.t())) == 128 * _LEVELS**2


def groups_of(inputs: int) -> int:
    """Into how many groups a token's values are cut, whole fours each."""
    if inputs <= _ONE_GROUP:
        return 1
    least = -(-inputs // _GROUP)
    return next((n for n in range(least, 2 * least) if inputs % (4 * n) == 0), 1)


def linear(weight: Tensor, bias: Tensor | None) -> Linear:
    """The function x -> x Wᵀ + b in int8, up to rounding; the weight itself is not kept."""
    rows, row_scales = quantize_rows(weight)
    size = weight.shape[1] // groups_of(weight.shape[1])
    parts = [_linear(part.contiguous(), row_scales) for part in torch.split(rows, size, dim=1)]

    def grouped(x: Tensor) -> Tensor:
        y = parts[0](x[:, :size])
        for number, part in enumerate(parts[1:], 1):
            y.add_(part(x[:, number * size : (number + 1) * size]))
        return y if bias is None else y.add_(bias)

    return grouped


def _linear(rows: Tensor, row_scales: Tensor) -> Linear:
    """Of one group's columns."""
    shift = rows.sum(dim=1, dtype=torch.int32) * row_scales  # [out]: what a middle of 1 adds
    product = make_product(rows, row_scales)

    def int8_linear(x: Tensor) -> Tensor:
        q, scale, mid = quantize_tokens(x)
        return product(q).mul_(scale).addcmul_(mid, shift)

    return int8_linear


def quantize_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Each row w as scale · p: p int8 [out, in] in [−127, 127], and the scales, float32 [out]."""
    largest: Tensor = torch.linalg.vector_norm(weight, math.inf, dim=1)
    scales = largest.mul_(1 / _LEVELS).clamp_min_(_LEAST_SCALE)
    return (weight / scales.unsqueeze(1)).round_().to(torch.int8), scales


def quantize_tokens(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Each row x as mid + scale · q: q int8 [T, in] in [−127, 127]; scale, mid float32 [T, 1].

    Ten small operations before every linear: two reductions are faster than one `aminmax`, which
    is not vectorized, and int8 converts several times as fast as uint8.
    """
    least, most = x.amin(dim=1, keepdim=True), x.amax(dim=1, keepdim=True)
    mid = torch.lerp(least, most, 0.5)
    scale = most.sub_(mid).mul_(1 / _LEVELS).clamp_min_(_LEAST_SCALE)
    return torch.sub(x, mid).div_(scale).round_().to(torch.int8), scale, mid


def make_product(rows: Tensor, row_scales: Tensor) -> Product:
    """The fastest product with the weight `rows`, int8 [out, in], for each number of tokens.

    On Intel's processors that is always the plain one. An AMD EPYC computes steps of 4 to 32 tokens
    up to a sixth faster from a second copy of the weight, in oneDNN's layout, but not one token.
    """
    plain = plain_product(rows, row_scales)
    if is_intel() or not hasattr(torch.ops.onednn, "qlinear_prepack"):
        return plain
    packed = packed_product(rows, row_scales)
    return lambda q: plain(q) if len(q) < _FIRST_PACKED_ROWS else packed(q)


def plain_product(rows: Tensor, row_scales: Tensor) -> Product:
    """By `_int_mm`."""
    columns = rows.t()  # [in, out], as `_int_mm` wants it and without a copy
    return lambda q: torch.mul(torch._int_mm(q, columns), row_scales)  # int32 · float32 -> float32


def packed_product(rows: Tensor, row_scales: Tensor) -> Product:
    """By `qlinear_pointwise`.

    It is fast for uint8 only: a flipped sign bit adds the 128 that its zero point takes away.
    """
    onednn = torch.ops.onednn
    packed = onednn.qlinear_prepack(rows, [1, rows.shape[1]])
    zeros = torch.zeros(len(rows), dtype=torch.int64)
    sign = torch.tensor(-128, dtype=torch.int8)
    # No bias; no scale and zero of the output, which is float32; nothing done to it afterwards.
    rest: tuple[Any, ...] = (None, 1.0, 0, torch.float32, "none", [], "")

    def product(q: Tensor) -> Tensor:
        x = q.bitwise_xor(sign).view(torch.uint8)
        y: Tensor = onednn.qlinear_pointwise(x, 1.0, 128, packed, row_scales, zeros, *rest)
        return y

    return product
