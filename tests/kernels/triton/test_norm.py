"""RMSNorm against its formula in float64."""

import pytest
import torch
from torch import Tensor

from branchline.kernels.triton.norm import add_rms_norm, rms_norm

from .compare import assert_close, random

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def formula(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    x64 = x.double()
    return x64 / (x64.square().mean(-1, keepdim=True) + eps).sqrt() * weight.double()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "size"), [(1, 16), (3, 64), (7, 576), (2, 1040)])
def test_rms_norm(rows: int, size: int, dtype: torch.dtype) -> None:
    x, weight = random(rows, size, dtype=dtype), random(size, seed=1, dtype=dtype)
    assert_close(rms_norm(x, weight, 1e-5), formula(x, weight, 1e-5))


def test_eps_counts() -> None:
    x, weight = random(2, 48) * 1e-3, random(48, seed=1)
    assert_close(rms_norm(x, weight, 1e-5), formula(x, weight, 1e-5))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("tokens", "heads", "size"), [(1, 1, 16), (5, 3, 64), (17, 8, 128)])
def test_rms_norm_of_the_heads_of_a_part(
    tokens: int, heads: int, size: int, dtype: torch.dtype
) -> None:
    # What lies around the part is not read.
    whole = torch.full((tokens, heads + 2, size), float("nan"), dtype=dtype)
    x = whole[:, 1 : 1 + heads]
    x.copy_(random(tokens, heads, size, dtype=dtype))
    weight = random(size, seed=1, dtype=dtype)
    assert_close(rms_norm(x, weight, 1e-6), formula(x, weight, 1e-6))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "size"), [(1, 16), (5, 576)])
def test_add_rms_norm(rows: int, size: int, dtype: torch.dtype) -> None:
    x, residual = random(rows, size, dtype=dtype), random(rows, size, seed=1, dtype=dtype)
    before, weight = residual.clone(), random(size, seed=2, dtype=dtype)
    normed, total = add_rms_norm(x, residual, weight, 1e-5)
    assert_close(total, x.double() + before.double())
    assert torch.equal(residual, before)
    assert_close(normed, formula(total, weight, 1e-5))


def test_of_no_tokens() -> None:
    x, weight = random(0, 32), random(32)
    assert rms_norm(x, weight, 1e-5).shape == (0, 32)
    assert add_rms_norm(x, x, weight, 1e-5)[0].shape == (0, 32)


def test_rows_that_no_16_byte_load_reaches_are_refused() -> None:
    with pytest.raises(AssertionError, match="token_stride"):
        rms_norm(random(3, 33), random(33), 1e-5)
