"""Models in GGUF files: their logits against the checkpoints they were made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from torch import Tensor

from branchline.errors import ModelError
from branchline.kernels import cpu_kernels
from branchline.runtime.models.config import config_of_gguf
from branchline.runtime.models.decoder import Decoder
from branchline.runtime.models.gguf_file import GGUFFile
from branchline.runtime.models.gguf_weights import GGUFWeights

from .conftest import Row, make_checkpoint, oracle_logits, run, scattered
from .tiny_gguf import round_weights, write_gguf

if TYPE_CHECKING:
    from pathlib import Path

LINEAR = {"rope_type": "linear", "rope_theta": 1000.0, "factor": 4.0}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def open_gguf(path: Path) -> Decoder:
    file = GGUFFile(path)
    config = config_of_gguf(file)
    weights = GGUFWeights(file, config, torch.float32)
    return Decoder(config, weights, cpu_kernels(), torch.float32)


def logits_of(path: Path, prompt: list[int]) -> Tensor:
    model = open_gguf(path)
    model.allocate(100)
    return run(model, [Row(prompt, 0, scattered(100))])[0]


def assert_close(found: Tensor, wanted: Tensor) -> None:
    assert wanted.std() > 0.3
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("llama", {}),
        ("llama", {"head_dim": 24, "tie_word_embeddings": True}),
        ("llama", {"attention_bias": True}),
        ("qwen2", {}),
        ("qwen3", {"head_dim": 24}),
    ],
    ids=str,
)
def test_logits(tmp_path: Path, prompt: list[int], kind: str, settings: dict[str, Any]) -> None:
    model = make_checkpoint(tmp_path / "hf", kind, **settings)
    write_gguf(tmp_path / "model.gguf", model)
    assert_close(logits_of(tmp_path / "model.gguf", prompt), oracle_logits(model, prompt))


@pytest.mark.parametrize("kind", [Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q4_0, Kind.Q5_1])
def test_types_of_tensors(tmp_path: Path, prompt: list[int], kind: Kind) -> None:
    model = make_checkpoint(tmp_path / "hf", "llama")
    write_gguf(tmp_path / "model.gguf", model, kind=kind)
    exact = oracle_logits(model, prompt)
    round_weights(model, kind)
    rounded = oracle_logits(model, prompt)
    assert not torch.allclose(exact, rounded, atol=1e-4)
    assert_close(logits_of(tmp_path / "model.gguf", prompt), rounded)


@pytest.mark.parametrize(
    "fields",
    [
        {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0},
        {"rope.scaling.factor": 4.0},
        {"rope.scale_linear": 4.0},
    ],
    ids=str,
)
def test_linear_rope(tmp_path: Path, prompt: list[int], fields: dict[str, Any]) -> None:
    model = make_checkpoint(tmp_path / "hf", "llama", rope_parameters=LINEAR)
    write_gguf(tmp_path / "model.gguf", model, fields=fields)
    assert_close(logits_of(tmp_path / "model.gguf", prompt), oracle_logits(model, prompt))


def test_llama3_rope_as_divisors(tmp_path: Path, prompt: list[int]) -> None:
    model = make_checkpoint(tmp_path / "hf", "llama", rope_parameters=LLAMA3)
    plain = 1.0 / 500.0 ** (np.arange(0, 16, 2) / 16)
    divisors = plain / model.model.rotary_emb.inv_freq.numpy()
    assert divisors.max() > 7.9
    tensors = {"rope_freqs.weight": divisors.astype(np.float32)}
    write_gguf(tmp_path / "model.gguf", model, tensors=tensors)
    assert_close(logits_of(tmp_path / "model.gguf", prompt), oracle_logits(model, prompt))


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return make_checkpoint(tmp_path_factory.mktemp("llama"), "llama", num_hidden_layers=1)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"attention.sliding_window": 64}, "sliding-window attention is not supported"),
        ({"attn_logit_softcapping": 30.0}, "soft-capped attention scores is not supported"),
        ({"final_logit_softcapping": 30.0}, "soft-capped logits is not supported"),
        ({"expert_count": 8}, "experts is not supported"),
        ({"rope.scaling.type": "yarn"}, "rope.scaling.type='yarn' is not supported"),
        ({"rope.dimension_count": 8}, "rotates 8 of 16 dimensions: partial rotary"),
        ({"attention.key_length": 16, "attention.value_length": 8}, "16 for K, 8 for V"),
        ({"attention.head_count": 3}, "3 heads do not share 2 of K and V equally"),
        (
            {"attention.key_length": 15, "attention.value_length": 15, "rope.dimension_count": 15},
            "heads of 15 dimensions have no pairs",
        ),
        ({"block_count": None}, "llama.block_count is None"),
        ({"attention.head_count_kv": "two"}, "llama.attention.head_count_kv is 'two'"),
        ({"embedding_length": 32}, "token_embd.weight is [131, 64]"),
        ({"block_count": 2}, "has no tensor blk.1.attn_norm.weight"),
    ],
    ids=str,
)
def test_what_fields_ask_for_is_refused_by_name(
    tmp_path: Path, llama: Any, fields: dict[str, Any], message: str
) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path, llama, fields=fields)
    with pytest.raises(ModelError) as caught:
        open_gguf(path)
    assert message in str(caught.value)
    assert "model.gguf" in str(caught.value)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"blk.0.ffn_up.weight": None}, "has no tensor blk.0.ffn_up.weight"),
        ({"blk.0.ffn_up.weight": np.ones((96, 32), np.float32)}, "is [96, 32]"),
        ({"blk.0.attn_sinks.weight": np.ones(4, np.float32)}, "blk.0.attn_sinks.weight"),
        ({"blk.0.ffn_up.bias": np.ones(96, np.float32)}, "blk.0.ffn_up.bias"),
    ],
    ids=str,
)
def test_tensors_that_do_not_fit(
    tmp_path: Path, llama: Any, tensors: dict[str, Any], message: str
) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path, llama, tensors=tensors)
    with pytest.raises(ModelError) as caught:
        open_gguf(path)
    assert message in str(caught.value)


def test_another_architecture_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "gemma2")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelError, match="architecture 'gemma2' is not supported"):
        open_gguf(path)
