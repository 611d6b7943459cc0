"""SmoothQuant: weights that compute the same, over activations without outliers.

A few channels of a model's activations are a hundred times as large as the rest, so 8 bits a token
leave little for the others, while its weights have range to spare. Dividing a channel by a factor
where it is made, and multiplying the columns that read it, moves range from one to the other and
changes nothing in exact arithmetic. (Xiao et al., "SmoothQuant", 2023; α = 0.5.)

    made by                 divided                read by
    a layer's norms         their weights          qkv; gate-up
    v, through attention    its rows               output, in every head that shares them
    up, times silu(gate)    its rows               down

The head reads its norm as it is: smoothing it gained nothing on the models that were measured, and
a tied head is the embedding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from branchline.kernels import cpu_kernels
from branchline.runtime.models.decoder import Decoder
from branchline.runtime.models.inputs import ForwardInputs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from branchline.kernels import KernelSet, Linear
    from branchline.runtime.models.config import DecoderConfig
    from branchline.runtime.models.weights import Weights

ALPHA = 0.5
_LEAST = 1e-5  # of a peak: channels that are always 0 exist


@dataclass(slots=True)
class Peaks:
    """The largest magnitudes around one linear, float32 [in]."""

    columns: Tensor  # of its weight
    inputs: Tensor  # of what it was called with

    def factors(self) -> Tensor:
        """What to divide each input by, so that inputs and columns share the outliers."""
        inputs, columns = self.inputs.clamp_min(_LEAST), self.columns.clamp_min(_LEAST)
        return inputs.pow(ALPHA) / columns.pow(1 - ALPHA)


def smooth(config: DecoderConfig, weights: Weights, ids: Sequence[int]) -> SmoothedWeights:
    """The same model's weights, smoothed by what its float32 activations are over the tokens `ids`.

    That model is gone when this returns: it and the one made of the result never coexist.
    """
    peaks = _measure(config, weights, ids[: config.context_length])
    return SmoothedWeights(weights, _scales(config, peaks))


class SmoothedWeights:
    """`Weights` whose rows and columns are scaled as they are taken."""

    def __init__(self, weights: Weights, scales: dict[str, Tensor]) -> None:
        self._weights = weights
        self._scales = scales

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """See `Weights.take`."""
        tensor = self._weights.take(name, shape)
        scale = self._scales.get(name)
        return tensor if scale is None else tensor * scale

    def left(self) -> list[str]:
        """See `Weights.left`."""
        return self._weights.left()


def _measure(config: DecoderConfig, weights: Weights, ids: Sequence[int]) -> list[Peaks]:
    """Run the tokens through the float32 model; the peaks of its linears in the order of use."""
    peaks: list[Peaks] = []
    model = Decoder(config, weights, _measuring(cpu_kernels(), peaks), torch.float32)
    count = len(ids)
    model.allocate(count + 1)
    pages = torch.arange(1, count + 1)
    model.forward(
        ForwardInputs(
            input_ids=torch.tensor(ids),
            positions=pages - 1,
            write_pages=pages,
            logit_rows=pages[-1:] - 1,
            q_indptr=[0, count],
            kv_lens=[count],
            page_table=pages.unsqueeze(0),
            slots=[0],
        )
    )
    return peaks


def _measuring(kernels: KernelSet, peaks: list[Peaks]) -> KernelSet:
    """Kernels whose every linear adds its peaks to the list when it is made."""

    def linear(weight: Tensor, bias: Tensor | None) -> Linear:
        compute = kernels.linear(weight, bias)
        mine = Peaks(_largest(weight), weight.new_zeros(weight.shape[1]))
        peaks.append(mine)

        def measured(x: Tensor) -> Tensor:
            mine.inputs = torch.maximum(mine.inputs, _largest(x))
            return compute(x)

        return measured

    return replace(kernels, linear=linear)


def _largest(x: Tensor) -> Tensor:
    """The largest magnitude of each column, without a second tensor of x's size."""
    largest: Tensor = torch.linalg.vector_norm(x, math.inf, dim=0)
    return largest


def _scales(config: DecoderConfig, peaks: Sequence[Peaks]) -> dict[str, Tensor]:
    """What to multiply each weight by, under its name."""
    assert len(peaks) == 4 * config.layers + 1, "four linears a layer, then the head"
    scales: dict[str, Tensor] = {}
    for number in range(config.layers):
        of_layer = _layer_scales(config, *peaks[4 * number : 4 * number + 4])
        scales |= {f"model.layers.{number}.{name}": scale for name, scale in of_layer.items()}
    return scales


def _layer_scales(
    config: DecoderConfig, qkv: Peaks, output: Peaks, gate_up: Peaks, down: Peaks
) -> dict[str, Tensor]:
    """What to multiply the weights of one layer by, from the peaks of its linears."""
    attention, mlp, inner = qkv.factors(), gate_up.factors(), down.factors()
    by_head = output.factors().view(config.kv_heads, -1, config.head_dim)
    value = by_head.amax(dim=1)  # [Hkv, D]: the heads of a group read the same v
    output_columns = value.unsqueeze(1).expand_as(by_head).flatten()
    value = value.flatten()
    return {
        "input_layernorm.weight": 1 / attention,
        "self_attn.q_proj.weight": attention,
        "self_attn.k_proj.weight": attention,
        "self_attn.v_proj.weight": attention / value.unsqueeze(1),
        "self_attn.v_proj.bias": 1 / value,
        "self_attn.o_proj.weight": output_columns,
        "post_attention_layernorm.weight": 1 / mlp,
        "mlp.gate_proj.weight": mlp,
        "mlp.up_proj.weight": mlp / inner.unsqueeze(1),
        "mlp.up_proj.bias": 1 / inner,
        "mlp.down_proj.weight": inner,
    }
