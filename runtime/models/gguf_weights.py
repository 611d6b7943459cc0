"""A decoder's weights from a GGUF file, under Hugging Face's names and in its order of rows."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import torch

from branchline.errors import ModelError
from branchline.runtime.models.weights import check_shape

if TYPE_CHECKING:
    from torch import Tensor

    from branchline.runtime.models.config import DecoderConfig
    from branchline.runtime.models.gguf_file import GGUFFile

_TOP = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_IN_LAYER = {
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
}
_LAYER_NAME = re.compile(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)")
_READ_ELSEWHERE = "rope_freqs.weight"  # part of the configuration


class GGUFWeights:
    """The weights of a GGUF file, dequantized one tensor at a time."""

    def __init__(self, file: GGUFFile, config: DecoderConfig, dtype: torch.dtype) -> None:
        self._file = file
        self._config = config
        self._dtype = dtype
        self._untaken = {name: None for name in file.names() if name != _READ_ELSEWHERE}

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """See `Weights.take`."""
        theirs = _gguf_name(name)
        if theirs in self._file:
            check_shape(self._file.path, theirs, self._file.shape(theirs), shape)
        self._untaken.pop(theirs, None)
        tensor = torch.from_numpy(self._file.tensor(theirs))
        if self._config.architecture == "llama":
            if ".q_proj." in name:
                tensor = unpermute(tensor, self._config.heads)
            elif ".k_proj." in name:
                tensor = unpermute(tensor, self._config.kv_heads)
        return tensor.to(self._dtype)

    def left(self) -> list[str]:
        """See `Weights.left`."""
        return list(self._untaken)


def unpermute(tensor: Tensor, heads: int) -> Tensor:
    """Undo llama.cpp's order of the rows of q and k.

    Its `llama` rotates neighbouring pairs (2i, 2i + 1) of a head's dimensions, so its converter
    interleaves the halves that Hugging Face rotates, (i, i + D / 2).
    """
    pairs = tensor.reshape(heads, -1, 2, *tensor.shape[1:])  # [H, D / 2, 2, ...]
    return pairs.transpose(1, 2).reshape(tensor.shape)


def _gguf_name(name: str) -> str:
    if name in _TOP:
        return _TOP[name]
    if match := _LAYER_NAME.fullmatch(name):
        layer, part, kind = match.groups()
        return f"blk.{layer}.{_IN_LAYER[part]}.{kind}"
    raise ModelError(f"GGUF files have no name for {name}")
