"""Hugging Face directories: what is refused, and by which name."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from branchline.errors import ModelError
from branchline.runtime.models.config import config_of_directory
from branchline.runtime.models.defaults import defaults_of_directory

from .conftest import edit_config, make_checkpoint, open_directory

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("llama")
    make_checkpoint(directory, "llama", num_hidden_layers=1)
    return directory


@pytest.fixture
def directory(saved: Path, tmp_path: Path) -> Path:
    return shutil.copytree(saved, tmp_path / "llama")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model_type": "gemma2"}, "model_type 'gemma2' is not supported; supported are llama"),
        ({"model_type": "mixtral"}, "model_type 'mixtral' is not supported"),
        ({"model_type": "nonsense"}, "nonsense"),
        ({"model_type": "mistral", "sliding_window": 64}, "sliding_window=64: sliding-window"),
        (
            {"model_type": "qwen2", "sliding_window": 64, "use_sliding_window": True},
            "sliding_window=64: sliding-window attention is not supported",
        ),
        ({"attn_logit_softcapping": 30.0}, "attn_logit_softcapping=30.0: soft-capped attention"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping=30.0: soft-capped logits"),
        ({"num_local_experts": 8}, "num_local_experts=8: experts is not supported"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantized weights is not supported"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu': only silu is supported"),
        ({"layer_types": ["chunked_attention"]}, "layer_types has chunked_attention"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, "rope_type='yarn' is not"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "rope_type='dynamic'"),
        (
            {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}},
            "partial_rotary_factor=0.5: partial rotary is not supported",
        ),
        (
            {"num_attention_heads": 4, "num_key_value_heads": 3},
            "4 heads do not share 3 of K and V equally",
        ),
        ({"num_attention_heads": 3}, "config.json cannot be read: Class validation error"),
        ({"hidden_size": "wide"}, "config.json cannot be read"),
        ({"hidden_size": 32}, "model.embed_tokens.weight is [131, 64]"),
        ({"num_hidden_layers": 2}, "has no tensor model.layers.1.input_layernorm.weight"),
        ({"attention_bias": True}, "has no tensor model.layers.0.self_attn.q_proj.bias"),
        ({"model_type": "qwen3", "head_dim": 16}, "self_attn.q_norm.weight"),
    ],
    ids=lambda value: str(value)[:50],
)
@pytest.mark.filterwarnings("ignore")  # transformers warns of some of these as well
def test_what_a_configuration_asks_for_is_refused_by_name(
    directory: Path, fields: dict[str, Any], message: str
) -> None:
    edit_config(directory, lambda config: config.update(fields))
    with pytest.raises(ModelError) as caught:
        open_directory(directory)
    assert message in str(caught.value)


def test_a_configuration_that_is_missing_or_damaged(directory: Path) -> None:
    (directory / "config.json").write_text("{")
    with pytest.raises(ModelError, match=r"config\.json cannot be read"):
        config_of_directory(directory)
    (directory / "config.json").unlink()
    with pytest.raises(ModelError, match=r"has no config\.json"):
        config_of_directory(directory)


def test_weights_that_nobody_takes_are_refused(directory: Path) -> None:
    path = directory / "model.safetensors"
    tensors = load_file(path)
    tensors["model.layers.0.self_attn.sinks"] = torch.ones(4)
    save_file(tensors, path)
    with pytest.raises(ModelError, match=r"like model\.layers\.0\.self_attn\.sinks"):
        open_directory(directory)


def test_redundant_weights_are_fine(directory: Path) -> None:
    path = directory / "model.safetensors"
    tensors = load_file(path)
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8)
    save_file(tensors, path)
    assert open_directory(directory).vocab_size == 131


def test_weights_that_are_missing_or_damaged(directory: Path) -> None:
    path = directory / "model.safetensors"
    content = path.read_bytes()
    for size in (0, 5, 100, len(content) - 1):
        path.write_bytes(content[:size])
        with pytest.raises(ModelError, match=r"model\.safetensors: not a safetensors file, or a"):
            open_directory(directory)
    path.unlink()
    with pytest.raises(ModelError, match=r"model\.safetensors: no such file"):
        open_directory(directory)


def test_a_shard_that_is_missing(directory: Path) -> None:
    index = directory / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "one.safetensors"}}))
    with pytest.raises(ModelError, match=r"one\.safetensors: no such file"):
        open_directory(directory)
    index.write_text("{}")
    with pytest.raises(ModelError, match=r"index\.json: not an index of shards"):
        open_directory(directory)


def test_quantized_weights_are_refused(directory: Path) -> None:
    path = directory / "model.safetensors"
    tensors = load_file(path)
    tensors["model.norm.weight"] = tensors["model.norm.weight"].to(torch.int8)
    save_file(tensors, path)
    with pytest.raises(ModelError, match=r"model\.norm\.weight is torch\.int8"):
        open_directory(directory)


def test_generation_defaults(directory: Path) -> None:
    path = directory / "generation_config.json"
    path.write_text(json.dumps({"temperature": 0.6, "top_p": 0.9, "top_k": 0, "eos_token_id": 2}))
    assert defaults_of_directory(directory) == {"temperature": 0.6, "top_p": 0.9}
    path.write_text("[")
    with pytest.raises(ModelError, match="not JSON"):
        defaults_of_directory(directory)
    path.unlink()
    assert defaults_of_directory(directory) == {}
