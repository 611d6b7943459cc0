from __future__ import annotations

import pytest

from branchline.errors import InvalidRequest
from branchline.runtime.config import RuntimeConfig


@pytest.mark.parametrize("value", ["int4", "fp8", "INT8", ""])
def test_another_quantization_is_refused_by_name(value: str) -> None:
    with pytest.raises(InvalidRequest, match=f"quantization={value}: must be int8"):
        RuntimeConfig(quantization=value)


def test_int8_is_for_float32() -> None:
    RuntimeConfig(quantization="int8")
    with pytest.raises(InvalidRequest, match="quantization=int8: needs dtype=float32"):
        RuntimeConfig(quantization="int8", dtype="bfloat16")
