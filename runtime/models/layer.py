"""One layer of a decoder: its weights, taken from a source and fused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from branchline.kernels import KernelSet, Linear
    from branchline.runtime.models.config import DecoderConfig
    from branchline.runtime.models.weights import Weights


@dataclass(frozen=True, slots=True)
class Layer:
    """The weights in the order of their use. H heads, Hkv heads of K and V, D dimensions each."""

    input_norm: Tensor  # [hidden]
    qkv: Linear  # [T, hidden] -> [T, (H + 2 * Hkv) * D]
    q_norm: Tensor | None  # [D]
    k_norm: Tensor | None  # [D]
    output: Linear  # [T, H * D] -> [T, hidden]
    mlp_norm: Tensor  # [hidden]
    gated: Linear  # silu of the gate times up: [T, hidden] -> [T, intermediate]
    down: Linear  # [T, intermediate] -> [T, hidden]


def take_layer(number: int, config: DecoderConfig, weights: Weights, kernels: KernelSet) -> Layer:
    """Take layer `number`; what belongs together becomes one linear. Raises ModelError."""
    taker = _Taker(f"model.layers.{number}", weights, kernels)
    hidden, inner, head_dim = config.hidden_size, config.intermediate_size, config.head_dim
    q_size, kv_size = config.heads * head_dim, config.kv_heads * head_dim
    qkv = {"self_attn.q_proj": q_size, "self_attn.k_proj": kv_size, "self_attn.v_proj": kv_size}
    gate_up = {"mlp.gate_proj": inner, "mlp.up_proj": inner}
    return Layer(
        input_norm=taker.vector("input_layernorm.weight", hidden),
        qkv=taker.linear(qkv, hidden, bias=config.qkv_bias),
        q_norm=taker.vector("self_attn.q_norm.weight", head_dim) if config.qk_norm else None,
        k_norm=taker.vector("self_attn.k_norm.weight", head_dim) if config.qk_norm else None,
        output=taker.linear({"self_attn.o_proj": hidden}, q_size, bias=config.output_bias),
        mlp_norm=taker.vector("post_attention_layernorm.weight", hidden),
        gated=taker.linear(gate_up, hidden, bias=config.mlp_bias, make=kernels.gated_linear),
        down=taker.linear({"mlp.down_proj": hidden}, inner, bias=config.mlp_bias),
    )


@dataclass(frozen=True, slots=True)
class _Taker:
    """Takes the tensors below one prefix to the kernels' device."""

    prefix: str
    weights: Weights
    kernels: KernelSet

    def vector(self, name: str, size: int) -> Tensor:
        return self.weights.take(f"{self.prefix}.{name}", (size,)).to(self.kernels.device)

    def linear(
        self,
        parts: dict[str, int],
        inputs: int,
        *,
        bias: bool,
        make: Callable[[Tensor, Tensor | None], Linear] | None = None,
    ) -> Linear:
        """One linear of several, below one another; `parts` has the outputs of each."""
        make = make or self.kernels.linear
        matrices = [
            self.weights.take(f"{self.prefix}.{name}.weight", (size, inputs))
            for name, size in parts.items()
        ]
        weight = torch.cat(matrices).to(self.kernels.device)
        if not bias:
            return make(weight, None)
        biases = [self.vector(f"{name}.bias", size) for name, size in parts.items()]
        return make(weight, torch.cat(biases))
