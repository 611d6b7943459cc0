"""What of a model would fit in a memory: counted from its configuration, nothing is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from branchline.errors import ModelError
from branchline.runtime.config import MIN_CONTEXT
from branchline.runtime.models.catalog import CATALOG
from branchline.runtime.models.config import config_of_directory, config_of_gguf
from branchline.runtime.models.gguf_file import GGUFFile
from branchline.runtime.models.source import resolve
from branchline.runtime.sizing import DEFAULT_MOST, DEFAULT_SHARE

if TYPE_CHECKING:
    from branchline.runtime.config import RuntimeConfig
    from branchline.runtime.models.config import DecoderConfig

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class Fit:
    """How a model fits one place."""

    place: str  # "cpu", "cuda:0"
    dtype: str
    weights: int  # bytes
    pool: int  # bytes that are left for keys and values; may be negative
    tokens: int  # that the pool holds
    context: int  # the longest request, prompt and output; 0: the model cannot be served here


def fit_cpu(config: DecoderConfig, dtype: str, available: int) -> Fit:
    """By the CPU device's rule: the pool is a share of what the weights leave."""
    left = available - weight_bytes(config, BYTES[dtype])
    pool = min(left // DEFAULT_SHARE, DEFAULT_MOST)
    return _fit("cpu", config, dtype, pool)


def fit_cuda(
    place: str, config: DecoderConfig, dtype: str, free: int, runtime: RuntimeConfig
) -> Fit:
    """By the CUDA device's rule: the pool is all that weights and activations leave.

    A runtime measures its activations when it starts; here they are estimated.
    """
    size = BYTES[dtype]
    pool = int(free * runtime.memory_fraction) - weight_bytes(config, size)
    pool -= activation_bytes(config, size, runtime.max_batch_tokens, runtime.max_running)
    return _fit(place, config, dtype, pool)


def _fit(place: str, config: DecoderConfig, dtype: str, pool: int) -> Fit:
    page = 2 * config.layers * config.kv_heads * config.head_dim * BYTES[dtype]
    tokens = max(0, pool // page - 1)  # page 0 pads
    context = min(tokens, config.context_length)
    return Fit(
        place=place,
        dtype=dtype,
        weights=weight_bytes(config, BYTES[dtype]),
        pool=pool,
        tokens=tokens,
        context=context if context >= min(MIN_CONTEXT, config.context_length) else 0,
    )


def weight_bytes(config: DecoderConfig, size: int) -> int:
    """Bytes of the weights of `size` bytes each, and of the table of rotations (float32)."""
    return weight_count(config) * size + config.context_length * config.head_dim * 4


def weight_count(config: DecoderConfig) -> int:
    """How many numbers a decoder has; a tied head is counted once."""
    hidden, inner = config.hidden_size, config.intermediate_size
    q_size, kv_size = config.heads * config.head_dim, config.kv_heads * config.head_dim
    layer = hidden * (q_size + 2 * kv_size) + q_size * hidden + 3 * hidden * inner + 2 * hidden
    layer += config.qkv_bias * (q_size + 2 * kv_size) + config.output_bias * hidden
    layer += config.mlp_bias * (2 * inner + hidden) + config.qk_norm * 2 * config.head_dim
    embeddings = config.vocab_size * hidden * (1 if config.tied else 2)
    return embeddings + config.layers * layer + hidden


def activation_bytes(config: DecoderConfig, size: int, tokens: int, rows: int) -> int:
    """About what one forward of `tokens` tokens needs beside weights and pool: its widest moment.

    That is the MLP's, with the residual and the normed input; then the logits of `rows` rows.
    """
    wide = 3 * config.intermediate_size + 3 * config.hidden_size
    return max(tokens * wide * size, rows * config.vocab_size * 3 * 4)


def config_of(source: str) -> DecoderConfig:
    """The configuration of a model that is on this machine; nothing is downloaded.

    Raises:
        ModelError: it is not here, or not one that we compute.
    """
    path = _local(source)
    return config_of_directory(path) if path.is_dir() else config_of_gguf(GGUFFile(path))


def _local(source: str) -> Path:
    """Like `resolve`, but of a hub name only what Hugging Face's cache has."""
    is_hub_name = source.count("/") == 1 and not source.startswith((".", "~", "/"))
    if source in CATALOG or Path(source).expanduser().exists() or not is_hub_name:
        return resolve(source)
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(source, "config.json")
    if not isinstance(found, str):
        raise ModelError(
            f"{source} is not in Hugging Face's cache: `branchline serve --model {source}` fetches "
            "it"
        )
    return Path(found).parent
