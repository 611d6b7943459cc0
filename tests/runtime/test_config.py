from __future__ import annotations

from typing import Any

import pytest
import torch

from branchline.errors import InvalidRequest, ModelError
from branchline.runtime.assembly import assemble
from branchline.runtime.config import RuntimeConfig


@pytest.mark.parametrize("value", ["int4", "fp8", "INT8", ""])
def test_another_quantization_is_refused_by_name(value: str) -> None:
    with pytest.raises(InvalidRequest, match=f"quantization={value}: must be int8"):
        RuntimeConfig(quantization=value)


def test_int8_is_for_float32() -> None:
    RuntimeConfig(quantization="int8")
    with pytest.raises(InvalidRequest, match="quantization=int8: needs dtype=float32"):
        RuntimeConfig(quantization="int8", dtype="bfloat16")


def test_the_model_is_loaded_as_the_settings_say(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, dict[str, Any]]] = []

    def load(source: str, **options: Any) -> None:
        calls.append((source, options))
        raise ModelError("seen")

    monkeypatch.setattr("branchline.runtime.models.load.load", load)
    with pytest.raises(ModelError, match="seen"):
        assemble(RuntimeConfig(model="m", quantization="int8"), lambda *_: None, lambda _: None)
    assert calls == [("m", {"dtype": torch.float32, "quantization": "int8"})]
