"""Smoothing changes no result in float32, and saves 8 bits from outliers."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import pytest
import torch

from branchline.errors import ModelError
from branchline.kernels import cpu_int8_kernels, int8_is_exact, reference_kernels
from branchline.runtime.models import load as load_module
from branchline.runtime.models import smoothquant
from branchline.runtime.models.calibration import CALIBRATION_TEXT
from branchline.runtime.models.config import config_of_directory
from branchline.runtime.models.decoder import Decoder
from branchline.runtime.models.load import load
from branchline.runtime.models.smoothquant import smooth
from branchline.runtime.models.weights import SafetensorsWeights

from .conftest import Row, make_checkpoint, oracle_logits, run, scattered
from .test_load import save_tokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from torch import Tensor

    from branchline.kernels import KernelSet
    from branchline.runtime.models.load import Loaded
    from branchline.runtime.models.weights import Weights

CHECKPOINTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "biases, tied": (
        "llama",
        {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    ),
    "wide heads, one of K and V": ("llama", {"head_dim": 24, "num_key_value_heads": 1}),
    "no groups": ("llama", {"num_key_value_heads": 4}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {"head_dim": 24}),
}


needs_int8 = pytest.mark.skipif(not int8_is_exact(), reason="the processor has no VNNI")


def add_outliers(model: Any, directory: Path) -> None:
    """Make a few channels 50 times as large, where a trained model has them, and save."""
    with torch.no_grad():
        for layer in model.model.layers:
            layer.input_layernorm.weight[5] *= 50
            layer.post_attention_layernorm.weight[9] *= 50
            layer.self_attn.v_proj.weight[3] *= 50
            layer.mlp.up_proj.weight[11] *= 50
            for linear, channel in (
                (layer.self_attn.q_proj, 5),
                (layer.self_attn.k_proj, 5),
                (layer.self_attn.v_proj, 5),
                (layer.mlp.gate_proj, 9),
                (layer.mlp.up_proj, 9),
                (layer.mlp.down_proj, 11),
            ):
                linear.weight[:, channel] *= 0.05
    model.save_pretrained(directory)


def logits(directory: Path, weights: Weights, kernels: KernelSet, ids: Sequence[int]) -> Tensor:
    model = Decoder(config_of_directory(directory), weights, kernels, torch.float32)
    model.allocate(len(ids) + 1)
    return run(model, [Row(ids, 0, scattered(len(ids) + 1))])[0]


def relative_error(found: Tensor, wanted: Tensor) -> float:
    return float((found - wanted).square().mean().sqrt() / wanted.std())


def open_weights(directory: Path) -> SafetensorsWeights:
    return SafetensorsWeights(directory, torch.float32)


def smoothed(directory: Path, ids: Sequence[int]) -> Weights:
    return smooth(config_of_directory(directory), open_weights(directory), ids)


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_smoothed_weights_compute_the_same(name: str, prompt: list[int], tmp_path: Path) -> None:
    kind, settings = CHECKPOINTS[name]
    model = make_checkpoint(tmp_path, kind, **settings)
    add_outliers(model, tmp_path)
    weights = smoothed(tmp_path, prompt[:50])
    norm = "model.layers.1.input_layernorm.weight"
    assert not torch.equal(weights.take(norm, (64,)), open_weights(tmp_path).take(norm, (64,)))
    found = logits(tmp_path, weights, reference_kernels(), prompt)
    torch.testing.assert_close(found, oracle_logits(model, prompt), rtol=0, atol=1e-3)
    assert not [one for one in weights.left() if "lm_head" not in one]


@needs_int8
def test_smoothing_saves_8_bits_from_outliers(prompt: list[int], tmp_path: Path) -> None:
    model = make_checkpoint(tmp_path, "llama")
    add_outliers(model, tmp_path)
    wanted = oracle_logits(model, prompt)
    plain, smoothed_error = (
        relative_error(logits(tmp_path, weights, cpu_int8_kernels(), prompt), wanted)
        for weights in (open_weights(tmp_path), smoothed(tmp_path, prompt[:50]))
    )
    assert smoothed_error < 0.5 * plain
    assert smoothed_error < 0.1


def test_factors_balance_inputs_and_columns() -> None:
    peaks = smoothquant.Peaks(torch.tensor([1.0, 4.0, 0.0]), torch.tensor([100.0, 4.0, 0.0]))
    factors = peaks.factors()
    torch.testing.assert_close(factors, torch.tensor([10.0, 1.0, 1.0]))
    torch.testing.assert_close(peaks.inputs / factors, peaks.columns * factors)


def test_the_float32_model_is_gone_before_the_next_comes(
    prompt: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_checkpoint(tmp_path, "llama")
    made: list[weakref.ref[Decoder]] = []

    class Watched(Decoder):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            made.append(weakref.ref(self))

    monkeypatch.setattr(smoothquant, "Decoder", Watched)
    smoothed(tmp_path, prompt)
    assert [one() for one in made] == [None]


@needs_int8
@pytest.mark.parametrize("tied", [False, True])
def test_load_in_int8(tmp_path: Path, prompt: list[int], tied: bool) -> None:
    model = make_checkpoint(tmp_path, "qwen2", tie_word_embeddings=tied)
    save_tokenizer(tmp_path, 131)
    loaded = load(tmp_path, quantization="int8")
    loaded.model.allocate(100)
    found = run(loaded.model, [Row(prompt, 0, scattered(100))])[0]
    wanted = oracle_logits(model, prompt)
    assert found.dtype == torch.float32
    assert 0 < relative_error(found, wanted) < 0.1


def test_a_processor_without_exact_sums_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_checkpoint(tmp_path, "llama")
    save_tokenizer(tmp_path, 131)
    monkeypatch.setattr(load_module, "int8_is_exact", lambda: False)
    with pytest.raises(ModelError, match="it has no VNNI"):
        load(tmp_path, quantization="int8")


def test_the_calibration_text_is_about_500_tokens(smollm2: Loaded) -> None:
    ids = smollm2.tokenizer.encode((("program", CALIBRATION_TEXT),))
    assert 450 <= len(ids) <= 550
