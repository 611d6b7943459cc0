"""Writes a checkpoint of transformers as llama.cpp's converter does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import torch

if TYPE_CHECKING:
    from pathlib import Path

NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}


def write_gguf(
    path: Path,
    model: Any,
    *,
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    fields: dict[str, Any] | None = None,
    tensors: dict[str, np.ndarray | None] | None = None,
) -> None:
    """Write `model`; `fields` and `tensors` replace or, with None, drop what it would have."""
    config = model.config
    architecture = config.model_type
    values = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.freq_base": config.rope_parameters["rope_theta"],
    }
    if getattr(config, "head_dim", None):
        values |= {
            "attention.key_length": config.head_dim,
            "attention.value_length": config.head_dim,
            "rope.dimension_count": config.head_dim,
        }
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in (values | (fields or {})).items():
        if value is not None:
            add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
            add[type(value)](f"{architecture}.{key}", value)
    for name, array in (_converted(model) | (tensors or {})).items():
        if array is not None:
            quantized = kind if array.ndim == 2 else gguf.GGMLQuantizationType.F32
            writer.add_tensor(name, gguf.quantize(array, quantized), raw_dtype=quantized)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def round_weights(model: Any, kind: gguf.GGMLQuantizationType) -> None:
    """Give a model the matrices that a GGUF file of `kind` keeps of it."""
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 2:
                kept = gguf.dequantize(gguf.quantize(weight.numpy(), kind), kind)
                weight.copy_(torch.from_numpy(np.array(kept)))


def _converted(model: Any) -> dict[str, np.ndarray]:
    config = model.config
    heads = {
        "self_attn.q_proj": config.num_attention_heads,
        "self_attn.k_proj": config.num_key_value_heads,
    }
    converted = {}
    for name, weight in model.named_parameters():  # a tied head is not among them
        stem, _, kind = name.rpartition(".")
        prefix, part = "", stem
        if stem.startswith("model.layers."):
            _, _, layer, part = stem.split(".", 3)
            prefix = f"blk.{layer}."
        array = weight.detach().numpy()
        if config.model_type == "llama" and part in heads:
            array = _interleaved(array, heads[part])
        converted[f"{prefix}{NAMES[part]}.{kind}"] = array
    return converted


def _interleaved(array: np.ndarray, heads: int) -> np.ndarray:
    """Row i of a head's first half before row i of its second half."""
    rows = []
    for head in np.split(array, heads):
        first, second = np.split(head, 2)
        rows += [row for pair in zip(first, second, strict=True) for row in pair]
    return np.stack(rows)
