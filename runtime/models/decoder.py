"""A decoder of the Llama family in plain torch; Llama, Mistral, Qwen2, Qwen3 by configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from branchline.errors import ModelError
from branchline.runtime.models.inputs import Tokens
from branchline.runtime.models.layer import take_layer
from branchline.runtime.models.rope import cos_sin_table

if TYPE_CHECKING:
    from torch import Tensor

    from branchline.kernels import KernelSet
    from branchline.runtime.models.config import DecoderConfig
    from branchline.runtime.models.inputs import ForwardInputs
    from branchline.runtime.models.layer import Layer
    from branchline.runtime.models.weights import Weights

# Tensors that some checkpoints carry beside what a decoder needs: its rope's frequencies, which are
# computed here, and a tied head, which is the embedding.
_REDUNDANT = ("rotary_emb.inv_freq", "lm_head.weight")


class Decoder:
    """A `Model`. T tokens of a batch, H heads, Hkv heads of K and V, D dimensions of a head."""

    def __init__(
        self, config: DecoderConfig, weights: Weights, kernels: KernelSet, dtype: torch.dtype
    ) -> None:
        """Take the weights one layer after the other, each in the form the kernels like.

        Raises:
            ModelError: a weight is missing, has another shape, or would never be used.
        """
        self.config = config
        self.vocab_size = config.vocab_size
        self.context_length = config.context_length
        self._kv_dtype = kernels.kv_dtype or dtype
        row = config.kv_heads * config.head_dim * self._kv_dtype.itemsize
        self.page_bytes = 2 * config.layers * row
        self.segment_cost = kernels.segment_cost
        self._kernels = kernels
        self.dtype = dtype
        self._pools: list[tuple[Tensor, Tensor]] = []  # K and V of each layer: [pages, Hkv, D]
        self._sm_scale = config.head_dim**-0.5
        with torch.inference_mode():
            self._take(weights)
        if unused := [name for name in weights.left() if not name.endswith(_REDUNDANT)]:
            raise ModelError(
                f"{len(unused)} weights that this {config.architecture} has no use for, like "
                f"{unused[0]}: it is another model than its configuration says"
            )

    def _take(self, weights: Weights) -> None:
        config, kernels = self.config, self._kernels
        table = cos_sin_table(config.rope, config.head_dim, config.context_length)
        self._cos_sin = table.to(kernels.device)  # float32 [context, D]
        vocabulary = (config.vocab_size, config.hidden_size)
        embedding = weights.take("model.embed_tokens.weight", vocabulary)
        self._embedding = embedding.to(kernels.device)
        self._layers = [
            take_layer(number, config, weights, kernels) for number in range(config.layers)
        ]
        norm = weights.take("model.norm.weight", (config.hidden_size,))
        # What norms a layer's output: the next layer's first norm, after the last one the model's.
        self._norms = [layer.input_norm for layer in self._layers[1:]]
        self._norms.append(norm.to(kernels.device))
        head = self._embedding
        if not config.tied:
            head = weights.take("lm_head.weight", vocabulary).to(kernels.device)
        self._head = kernels.linear(head, None)

    def allocate(self, pages: int) -> None:
        """Make the pool of `pages` pages, page 0 included; what it held before is lost."""
        shape = (pages, self.config.kv_heads, self.config.head_dim)
        device = self._kernels.device
        self._pools = []  # the old pool goes before the new one comes
        self._run = self._kernels.make_run()
        for _ in range(self.config.layers):
            k_pool, v_pool = (
                self._kernels.zeros(shape, dtype=self._kv_dtype, device=device) for _ in range(2)
            )
            self._pools.append((k_pool, v_pool))

    @torch.inference_mode()
    def forward(self, inputs: ForwardInputs) -> Tensor:
        """See `Model.forward`."""
        plan = self._kernels.plan(
            inputs.q_indptr, inputs.kv_lens, inputs.page_table, inputs.slots, inputs.segments
        )
        tensors = inputs.input_ids, inputs.positions, inputs.write_pages, inputs.logit_rows
        return self._run(self._compute, tensors, plan)

    def _compute(self, tensors: tuple[Tensor, ...], plan: Any) -> Tensor:
        return self.compute(Tokens(*tensors), plan)

    @torch.inference_mode()
    def compute(self, tokens: Tokens, plan: Any) -> Tensor:
        """`forward` of tokens whose attention is planned already."""
        kernels, eps = self._kernels, self.config.norm_eps
        residual = kernels.gather(self._embedding, tokens.input_ids)  # [T, hidden]
        x = kernels.rms_norm(residual, self._layers[0].input_norm, eps)
        for layer, pools, norm in zip(self._layers, self._pools, self._norms, strict=True):
            x = layer.output(self._attend(x, layer, pools, tokens, plan))
            x, residual = kernels.add_rms_norm(x, residual, layer.mlp_norm, eps)
            x = layer.down(layer.gated(x))
            x, residual = kernels.add_rms_norm(x, residual, norm, eps)
        return self._head(kernels.gather(x, tokens.logit_rows)).float()

    def _attend(
        self,
        x: Tensor,
        layer: Layer,
        pools: tuple[Tensor, Tensor],
        tokens: Tokens,
        plan: Any,
    ) -> Tensor:
        """Attention of one layer, [T, hidden] -> [T, H * D]; writes the tokens' K and V first."""
        config, kernels = self.config, self._kernels
        heads, kv_heads, eps = config.heads, config.kv_heads, config.norm_eps
        qkv = layer.qkv(x).view(len(x), heads + 2 * kv_heads, config.head_dim)
        q, k, v = torch.split(qkv, [heads, kv_heads, kv_heads], dim=1)
        if layer.q_norm is not None and layer.k_norm is not None:
            q = kernels.rms_norm(q, layer.q_norm, eps)
            k = kernels.rms_norm(k, layer.k_norm, eps)
        positions, pages = tokens.positions, tokens.write_pages
        q = kernels.rope_and_write(q, k, v, self._cos_sin, positions, pages, *pools)
        return kernels.attention(q, *pools, plan, self._sm_scale).view(len(x), -1)
