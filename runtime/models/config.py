"""What a decoder of the Llama family looks like, read from a Hugging Face directory or a GGUF file.

Everything such a description can ask for and we do not compute is refused by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from branchline.errors import ModelError
from branchline.runtime.models.rope import RopeConfig

if TYPE_CHECKING:
    from pathlib import Path

    from branchline.runtime.models.gguf_file import GGUFFile


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    """A decoder of the Llama family. Which biases and norms it has, its weights say."""

    architecture: str  # llama, mistral, qwen2 or qwen3
    vocab_size: int
    context_length: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float
    rope: RopeConfig
    tied: bool  # the head is the embedding
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False

    def checked(self, where: object) -> DecoderConfig:
        """The configuration itself; ModelError, naming `where` it is from, if its sizes clash."""
        if self.heads % self.kv_heads:
            raise ModelError(
                f"{where}: {self.heads} heads do not share {self.kv_heads} of K and V equally"
            )
        if self.head_dim % 2:
            raise ModelError(
                f"{where}: heads of {self.head_dim} dimensions have no pairs to rotate"
            )
        return self


# ------------------------------------------------------------------------------ Hugging Face

HF_ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3")

# Fields that change what a model computes, by what they ask for. Absent, None, False, 0 and, for a
# factor, 1 ask for nothing.
_HF_REFUSED = {
    "sliding_window": "sliding-window attention",
    "attn_logit_softcapping": "soft-capped attention scores",
    "final_logit_softcapping": "soft-capped logits",
    "num_experts": "experts",
    "num_local_experts": "experts",
    "n_routed_experts": "experts",
    "quantization_config": "quantized weights",
}


def config_of_directory(directory: Path) -> DecoderConfig:
    """The decoder that `config.json` describes, in either spelling of its fields.

    Raises:
        ModelError: there is no readable description, or it asks for what we do not compute.
    """
    config = _auto_config(directory)
    kind = config.model_type
    where = f"{directory}: config.json"
    if kind not in HF_ARCHITECTURES:
        known = ", ".join(HF_ARCHITECTURES)
        raise ModelError(f"{where}: model_type {kind!r} is not supported; supported are {known}")
    for name, feature in _HF_REFUSED.items():
        if value := getattr(config, name, None):
            raise ModelError(f"{where}: {name}={value}: {feature} is not supported")
    if other := set(getattr(config, "layer_types", None) or ()) - {"full_attention"}:
        raise ModelError(f"{where}: layer_types has {', '.join(sorted(other))}: not supported")
    if config.hidden_act != "silu":
        raise ModelError(f"{where}: hidden_act={config.hidden_act!r}: only silu is supported")
    heads = config.num_attention_heads
    attention_bias = bool(getattr(config, "attention_bias", False))
    return DecoderConfig(
        architecture=kind,
        vocab_size=config.vocab_size,
        context_length=config.max_position_embeddings,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        layers=config.num_hidden_layers,
        heads=heads,
        kv_heads=config.num_key_value_heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        norm_eps=config.rms_norm_eps,
        rope=_hf_rope(config, where),
        tied=bool(config.tie_word_embeddings),
        qkv_bias=attention_bias or kind == "qwen2",
        output_bias=attention_bias,
        mlp_bias=bool(getattr(config, "mlp_bias", False)),
        qk_norm=kind == "qwen3",
    ).checked(where)


def _auto_config(directory: Path) -> Any:
    """What transformers reads in `config.json`; it modernises the spelling of the fields."""
    from transformers import AutoConfig

    if not (directory / "config.json").is_file():
        raise ModelError(f"{directory}: has no config.json, so it is not a Hugging Face model")
    try:
        return AutoConfig.from_pretrained(directory, local_files_only=True)
    except Exception as error:  # whatever a field of the wrong type raises inside
        reason = " ".join(str(error).split())
        raise ModelError(f"{directory}: config.json cannot be read: {reason}") from error


# What each kind of rope needs beside rope_theta, and our name for it.
_HF_ROPE_FIELDS = {
    "default": {},
    "linear": {"factor": "factor"},
    "llama3": {
        "factor": "factor",
        "low_freq_factor": "low_freq_factor",
        "high_freq_factor": "high_freq_factor",
        "original_max_position_embeddings": "original_context",
    },
}


def _hf_rope(config: Any, where: str) -> RopeConfig:
    rope = dict(config.rope_parameters)
    kind = rope.get("rope_type", "default")
    if (part := rope.get("partial_rotary_factor") or 1.0) != 1.0:
        raise ModelError(f"{where}: partial_rotary_factor={part}: partial rotary is not supported")
    if kind not in _HF_ROPE_FIELDS:
        known = ", ".join(_HF_ROPE_FIELDS)
        raise ModelError(f"{where}: rope_type={kind!r} is not supported; supported are {known}")
    fields = _HF_ROPE_FIELDS[kind]
    if missing := [name for name in ("rope_theta", *fields) if name not in rope]:
        raise ModelError(f"{where}: a rope of type {kind} needs {', '.join(missing)}")
    scaling = {ours: rope[theirs] for theirs, ours in fields.items()}
    return RopeConfig(theta=rope["rope_theta"], kind=kind, **scaling)


# -------------------------------------------------------------------------------------- GGUF

GGUF_ARCHITECTURES = ("llama", "qwen2", "qwen3")

_GGUF_REFUSED = {
    "attention.sliding_window": "sliding-window attention",
    "attn_logit_softcapping": "soft-capped attention scores",
    "final_logit_softcapping": "soft-capped logits",
    "expert_count": "experts",
    "attention.scale": "another attention scale",
    "logit_scale": "scaled logits",
    "residual_scale": "scaled residuals",
    "embedding_scale": "scaled embeddings",
}


def config_of_gguf(file: GGUFFile) -> DecoderConfig:
    """The decoder that a GGUF file's fields and tensors describe.

    Raises:
        ModelError: a field is missing, or asks for what we do not compute.
    """
    kind = file.architecture
    if kind not in GGUF_ARCHITECTURES:
        known = ", ".join(GGUF_ARCHITECTURES)
        raise ModelError(
            f"{file.path}: architecture {kind!r} is not supported; supported are {known}"
        )
    for name, feature in _GGUF_REFUSED.items():
        if value := file.model_value(name):
            raise ModelError(f"{file.path}: {kind}.{name}={value}: {feature} is not supported")
    hidden, heads = _needed(file, "embedding_length"), _needed(file, "attention.head_count")
    head_dim = file.model_value("attention.key_length", hidden // heads)
    value_dim = file.model_value("attention.value_length", head_dim)
    if value_dim != head_dim:
        raise ModelError(f"{file.path}: heads of {head_dim} for K, {value_dim} for V: unsupported")
    return DecoderConfig(
        architecture=kind,
        vocab_size=file.shape("token_embd.weight")[0],
        context_length=_needed(file, "context_length"),
        hidden_size=hidden,
        intermediate_size=_needed(file, "feed_forward_length"),
        layers=_needed(file, "block_count"),
        heads=heads,
        kv_heads=_needed(file, "attention.head_count_kv", heads),
        head_dim=head_dim,
        norm_eps=_needed(file, "attention.layer_norm_rms_epsilon"),
        rope=_gguf_rope(file, head_dim),
        tied="output.weight" not in file,
        qkv_bias="blk.0.attn_q.bias" in file,
        output_bias="blk.0.attn_output.bias" in file,
        mlp_bias="blk.0.ffn_gate.bias" in file,
        qk_norm="blk.0.attn_q_norm.weight" in file,
    ).checked(file.path)


def _gguf_rope(file: GGUFFile, head_dim: int) -> RopeConfig:
    rotated = file.model_value("rope.dimension_count", head_dim)
    if rotated != head_dim:
        raise ModelError(
            f"{file.path}: rotates {rotated} of {head_dim} dimensions: partial rotary is not "
            "supported"
        )
    # llama.cpp's rules: linear unless the file says otherwise, and an older name of the factor.
    kind = file.model_value("rope.scaling.type", "linear")
    if kind not in ("none", "linear"):
        raise ModelError(
            f"{file.path}: rope.scaling.type={kind!r} is not supported; supported are none, linear"
        )
    factor = file.model_value("rope.scaling.factor") or file.model_value("rope.scale_linear") or 1.0
    divisors: tuple[float, ...] = ()
    if "rope_freqs.weight" in file:  # how llama.cpp stores Llama 3's scaling
        divisors = tuple(file.tensor("rope_freqs.weight").tolist())
    return RopeConfig(
        theta=file.model_value("rope.freq_base", 10000.0),
        kind=kind if kind == "linear" else "default",
        factor=factor,
        divisors=divisors,
    )


def _needed(file: GGUFFile, key: str, default: int | None = None) -> Any:
    """A number; some models have a list of one for each layer, which no decoder here has."""
    value = file.model_value(key, default)
    if not isinstance(value, int | float):
        raise ModelError(f"{file.path}: the field {file.architecture}.{key} is {value!r}")
    return value
