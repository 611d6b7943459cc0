"""The int8 linear against its formula in float64 numpy, and what it promises about batches."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from branchline.kernels import cpu_int8
from branchline.kernels.cpu_int8 import (
    cpu_int8_kernels,
    int8_is_exact,
    packed_product,
    plain_product,
    quantize_rows,
    quantize_tokens,
)

pytestmark = pytest.mark.skipif(not int8_is_exact(), reason="the processor has no VNNI")
linear = cpu_int8_kernels().linear


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def rounded(x: np.ndarray, *, centred: bool) -> np.ndarray:
    """Each row on its grid of 255 values: around the middle of its range, or around 0."""
    x = x.astype(np.float64)
    least, most = x.min(axis=1, keepdims=True), x.max(axis=1, keepdims=True)
    middle = (least + most) / 2 if centred else np.zeros_like(least)
    step = np.abs(x - middle).max(axis=1, keepdims=True) / 127
    steps = np.round(np.divide(x - middle, step, out=np.zeros_like(x), where=step > 0))
    return middle + steps * step


def test_saturating_sums_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without VNNI, two products of a uint8 and an int8 are added in 16 bits."""

    def saturating(a: Tensor, b: Tensor) -> Tensor:
        products = (a.int() + 128).unsqueeze(2) * b.unsqueeze(0)
        pairs = products.unflatten(1, (-1, 2)).sum(dim=2).clamp(-(2**15), 2**15 - 1)
        return pairs.sum(dim=1) - 128 * b.sum(dim=0)

    monkeypatch.setattr(torch, "_int_mm", saturating)
    assert not int8_is_exact()


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 7, 8, 16, 33, 64, 300])
@pytest.mark.parametrize("with_bias", [False, True])
def test_equals_the_product_of_the_rounded(rows: int, with_bias: bool) -> None:
    weight, x = random(48, 65, seed=1), random(rows, 65, seed=2) * 3 + 2
    bias = random(48, seed=3) if with_bias else None
    wanted = rounded(x.numpy(), centred=True) @ rounded(weight.numpy(), centred=False).T
    if bias is not None:
        wanted += bias.double().numpy()
    found = linear(weight, bias)(x)
    assert found.dtype == torch.float32
    # A value between two steps may go to the other one in float32, one step in 127 of 48 products.
    close = np.isclose(found.numpy(), wanted, rtol=1e-5, atol=1e-4)
    assert close.mean() > 0.98
    np.testing.assert_allclose(found.numpy(), wanted, atol=0.3)


@pytest.mark.parametrize("inputs", [24, 576, 1536])
@pytest.mark.parametrize("rows", [1, 2, 9, 64])
def test_both_products_give_the_same_bits(inputs: int, rows: int) -> None:
    weight, scales = quantize_rows(random(200, inputs, seed=1))
    q, _, _ = quantize_tokens(random(rows, inputs, seed=2))
    found = packed_product(weight, scales)(q)
    assert torch.equal(found, plain_product(weight, scales)(q))
    exact = (q.double() @ weight.double().t()).float() * scales
    assert torch.equal(found, exact)


@pytest.mark.parametrize("inputs", [64, 576, 1536])
@pytest.mark.parametrize("intel", [False, True])
def test_a_token_does_not_depend_on_its_batch(
    monkeypatch: pytest.MonkeyPatch, intel: bool, inputs: int
) -> None:
    monkeypatch.setattr(cpu_int8, "is_intel", lambda: intel)
    compute, x = linear(random(200, inputs, seed=1), None), random(300, inputs, seed=2)
    whole = compute(x)
    for rows in (1, 2, 3, 5, 8, 9, 31, 64, 129, 299):
        assert torch.equal(compute(x[:rows]), whole[:rows])
        assert torch.equal(compute(x[-rows:]), whole[-rows:])


def test_sums_do_not_overflow() -> None:
    """All products at their largest, over more inputs than any down projection we know has."""
    weight = torch.ones(16, 32768)
    x = torch.cat((torch.full((2, 32767), 5.0), torch.full((2, 1), -5.0)), dim=1)
    wanted = torch.full((2, 16), 5.0 * 32766)
    torch.testing.assert_close(linear(weight, None)(x), wanted, rtol=1e-5, atol=0)


def test_a_constant_token_is_exact() -> None:
    """Its range is nothing, so it is all middle; a row of zeros stays zeros."""
    weight = torch.tensor([[1.0, -1.0, 127.0, 0.0]] * 16)
    found = linear(weight, None)(torch.tensor([[3.0] * 4, [0.0] * 4]))
    assert torch.equal(found, torch.tensor([[381.0] * 16, [0.0] * 16]))


def test_zero_rows_of_the_weight_and_no_tokens() -> None:
    weight = torch.zeros(16, 32)
    weight[3] = 1
    compute = linear(weight, None)
    found = compute(random(2, 32))
    assert not found[:, [0, 1, 2, *range(4, 16)]].any()
    assert compute(torch.empty(0, 32)).shape == (0, 16)


def test_a_token_that_is_not_finite_does_not_spread() -> None:
    compute, x = linear(random(24, 40, seed=1), None), random(4, 40, seed=2)
    wanted = compute(x)
    broken = x.clone()
    broken[1, 7] = float("nan")
    broken[2, 7] = float("inf")
    found = compute(broken)
    assert not found[[1, 2]].isfinite().any()
    assert torch.equal(found[[0, 3]], wanted[[0, 3]])


def test_the_weight_is_not_kept_or_changed() -> None:
    weight = random(16, 32)
    before = weight.clone()
    compute = linear(weight, None)
    wanted = compute(random(2, 32, seed=1))
    assert torch.equal(weight, before)
    weight.zero_()
    assert torch.equal(compute(random(2, 32, seed=1)), wanted)
