"""Tiny random checkpoints: our logits against those of transformers, which saved them."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor

from branchline.kernels import reference_kernels
from branchline.runtime.models.config import config_of_directory
from branchline.runtime.models.decoder import Decoder
from branchline.runtime.models.weights import SafetensorsWeights

from .conftest import (
    Row,
    edit_config,
    make_checkpoint,
    open_directory,
    oracle_logits,
    run,
    scattered,
)

if TYPE_CHECKING:
    from pathlib import Path

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LINEAR = {"rope_type": "linear", "rope_theta": 1000.0, "factor": 4.0}
CHECKPOINTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama, tied": ("llama", {"tie_word_embeddings": True}),
    "llama, biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama, wide heads": ("llama", {"head_dim": 24}),
    "llama, llama3 rope": ("llama", {"rope_parameters": LLAMA3}),
    "llama, linear rope": ("llama", {"rope_parameters": LINEAR}),
    "llama, no groups, two shards": (
        "llama",
        {"num_key_value_heads": 4, "max_shard_size": "200KB"},
    ),
    "mistral": ("mistral", {"sliding_window": None, "head_dim": 24}),
    "qwen2": ("qwen2", {}),
    "qwen2, tied": ("qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("qwen3", {"head_dim": 24}),
    "qwen3, biases, tied": (
        "qwen3",
        {"head_dim": 16, "attention_bias": True, "tie_word_embeddings": True},
    ),
}


@pytest.fixture(scope="module", params=CHECKPOINTS.values(), ids=CHECKPOINTS.keys())
def checkpoint(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, prompt: list[int]
) -> tuple[Path, Tensor]:
    """A directory, and the oracle's logits of the prompt."""
    kind, settings = request.param
    directory = tmp_path_factory.mktemp("checkpoint")
    model = make_checkpoint(directory, kind, **settings)
    return directory, oracle_logits(model, prompt)


def assert_close(found: Tensor, wanted: Tensor) -> None:
    assert found.dtype == torch.float32
    assert wanted.std() > 0.3  # else everything would be close
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-4)


def test_a_whole_prompt(checkpoint: tuple[Path, Tensor], prompt: list[int]) -> None:
    directory, wanted = checkpoint
    model = open_directory(directory)
    model.allocate(200)
    (found,) = run(model, [Row(prompt, 0, scattered(200))])
    assert_close(found, wanted)


def test_chunks_then_token_by_token(checkpoint: tuple[Path, Tensor], prompt: list[int]) -> None:
    directory, wanted = checkpoint
    model = open_directory(directory)
    model.allocate(200)
    pages = scattered(200)
    cuts = [0, 1, 33, 60, *range(61, len(prompt) + 1)]
    found = [
        run(model, [Row(prompt[start:end], start, pages)])[0]
        for start, end in itertools.pairwise(cuts)
    ]
    assert_close(torch.cat(found), wanted)


def test_the_reference_kernels_agree(checkpoint: tuple[Path, Tensor], prompt: list[int]) -> None:
    directory, wanted = checkpoint
    weights = SafetensorsWeights(directory, torch.float32)
    config = config_of_directory(directory)
    model = Decoder(config, weights, reference_kernels(), torch.float32)
    model.allocate(200)
    (found,) = run(model, [Row(prompt, 0, scattered(200))])
    assert_close(found, wanted)


def test_two_shards_are_two_files(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, *["llama"], **CHECKPOINTS["llama, no groups, two shards"][1])
    assert len(list(tmp_path.glob("*.safetensors"))) >= 2


@pytest.mark.parametrize("rope", [None, LINEAR, LLAMA3], ids=["default", "linear", "llama3"])
def test_both_spellings_of_a_configuration(tmp_path: Path, rope: dict[str, Any] | None) -> None:
    settings = {"rope_parameters": rope} if rope else {}
    make_checkpoint(tmp_path, "llama", **settings)
    modern = config_of_directory(tmp_path)

    def to_the_old_spelling(config: dict[str, Any]) -> None:
        scaling = config.pop("rope_parameters")
        config["torch_dtype"] = config.pop("dtype")
        config["rope_theta"] = scaling.pop("rope_theta")
        kind = scaling.pop("rope_type")
        config["rope_scaling"] = {"type": kind, **scaling} if kind != "default" else None

    edit_config(tmp_path, to_the_old_spelling)
    assert "rope_parameters" not in (tmp_path / "config.json").read_text()
    assert config_of_directory(tmp_path) == modern
    if rope:
        assert modern.rope.factor == rope["factor"]
        assert modern.rope.theta == rope["rope_theta"]
