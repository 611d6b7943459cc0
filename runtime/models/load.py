"""From what a user calls a model to everything that serving it needs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from branchline.errors import ModelError
from branchline.kernels import fastest_cpu_kernels, fastest_int8_kernels, int8_is_exact
from branchline.protocol import ModelCard
from branchline.runtime.models.calibration import CALIBRATION_TEXT
from branchline.runtime.models.catalog import CATALOG
from branchline.runtime.models.config import config_of_directory, config_of_gguf
from branchline.runtime.models.decoder import Decoder
from branchline.runtime.models.defaults import defaults_of_directory, defaults_of_gguf
from branchline.runtime.models.gguf_file import GGUFFile
from branchline.runtime.models.gguf_weights import GGUFWeights
from branchline.runtime.models.smoothquant import smooth
from branchline.runtime.models.source import resolve
from branchline.runtime.models.weights import SafetensorsWeights
from branchline.runtime.text import Tokenizer, cut_chat_template

if TYPE_CHECKING:
    from branchline.kernels import KernelSet
    from branchline.runtime.models.config import DecoderConfig
    from branchline.runtime.models.weights import Weights


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model, ready to `allocate` its pool and to be served."""

    model: Decoder
    tokenizer: Tokenizer
    card: ModelCard


@dataclass(frozen=True, slots=True)
class _Source:
    """What is read of a model's files before its weights are."""

    config: DecoderConfig
    tokenizer: Tokenizer
    defaults: dict[str, float]
    weights: Weights


def load(
    source: str | Path,
    *,
    kernels: KernelSet | None = None,
    dtype: torch.dtype = torch.float32,
    quantization: str | None = None,
) -> Loaded:
    """Load the model that `source` names; by default for the CPU.

    Args:
        source: see `resolve`.
        kernels: of the device to load it for.
        dtype: of the weights, K and V.
        quantization: `int8` chooses the kernels, and float32 for what is not quantized.

    Raises:
        ModelError: it cannot be found or read, or asks for what we do not compute.
    """
    path = resolve(source)
    opened = _open_directory(path, dtype) if path.is_dir() else _open_gguf(path, dtype)
    config, tokenizer = opened.config, opened.tokenizer
    if tokenizer.vocab_size > config.vocab_size:
        raise ModelError(
            f"{path}: its tokenizer has {tokenizer.vocab_size} tokens, the model only "
            f"{config.vocab_size}"
        )
    if quantization is None:
        kernels = kernels or fastest_cpu_kernels(config.head_dim, dtype)
        model = Decoder(config, opened.weights, kernels, dtype)
    else:
        assert (quantization, kernels, dtype) == ("int8", None, torch.float32)
        model = _int8_decoder(opened)
    card = ModelCard(
        name=_card_name(source, path),
        vocab_size=config.vocab_size,
        context_length=config.context_length,
        stop_token_ids=tuple(sorted(tokenizer.stop_token_ids)),
        chat_template=cut_chat_template(tokenizer.render),
        generation_defaults=opened.defaults,
        takes_tools=tokenizer.takes_tools,
    )
    return Loaded(model, tokenizer, card)


def _int8_decoder(opened: _Source) -> Decoder:
    if not int8_is_exact():
        raise ModelError(
            "quantization='int8': this processor's sums of 8-bit products overflow (it has no "
            "VNNI); leave the setting out"
        )
    ids = opened.tokenizer.encode((("program", CALIBRATION_TEXT),))
    config = opened.config
    weights = smooth(config, opened.weights, ids)
    inputs = config.hidden_size, config.intermediate_size, config.heads * config.head_dim
    kernels = fastest_int8_kernels(config.head_dim, inputs)
    return Decoder(config, weights, kernels, torch.float32)


def _open_directory(path: Path, dtype: torch.dtype) -> _Source:
    return _Source(
        config=config_of_directory(path),
        tokenizer=Tokenizer.from_directory(path),
        defaults=defaults_of_directory(path),
        weights=SafetensorsWeights(path, dtype),
    )


def _open_gguf(path: Path, dtype: torch.dtype) -> _Source:
    file = GGUFFile(path)
    config = config_of_gguf(file)
    return _Source(
        config=config,
        tokenizer=Tokenizer.from_gguf(file),
        defaults=defaults_of_gguf(file),
        weights=GGUFWeights(file, config, dtype),
    )


def _card_name(source: str | Path, path: Path) -> str:
    """A catalogue or hub name as it is, of a path its last part."""
    is_path = str(source) not in CATALOG and Path(source).expanduser().exists()
    return path.name.removesuffix(".gguf") if is_path else str(source)
