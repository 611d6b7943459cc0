"""SiLU-mul against its formula in float64."""

import pytest
import torch

from branchline.kernels.triton.activation import silu_mul

from .compare import assert_close, random


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("tokens", "size"), [(1, 8), (3, 200), (2, 1024), (2, 1544)])
def test_silu_mul(tokens: int, size: int, dtype: torch.dtype) -> None:
    gate_up = random(tokens, 2 * size, dtype=dtype) * 4
    gate, up = gate_up.double().chunk(2, dim=-1)
    assert_close(silu_mul(gate_up), gate / (1 + (-gate).exp()) * up)


def test_of_a_wider_row() -> None:
    whole = torch.full((3, 80), float("nan"))
    whole[:, 16:64] = random(3, 48)
    gate, up = whole[:, 16:64].double().chunk(2, dim=-1)
    assert_close(silu_mul(whole[:, 16:64]), gate / (1 + (-gate).exp()) * up)


def test_of_no_tokens() -> None:
    assert silu_mul(random(0, 32)).shape == (0, 16)
