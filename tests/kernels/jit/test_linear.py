"""The compiled linears against numpy, and what the 8-bit one promises about batches."""

import numpy as np
import pytest
import torch
from torch import Tensor

from branchline.kernels import cpu_int8
from branchline.kernels.jit import linear
from branchline.kernels.jit.product import HAS_BYTE_PRODUCTS

needs_vnni = pytest.mark.skipif(not HAS_BYTE_PRODUCTS, reason="the processor has no VNNI")


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


# One block of tokens, several, and one that is not full; inner parts; outputs that end in a panel.
@pytest.mark.parametrize("tokens", [1, 6, 48, 49, 97, 200])
@pytest.mark.parametrize(("outputs", "inputs"), [(64, 1100), (130, 513), (1, 512)])
def test_linear(tokens: int, outputs: int, inputs: int) -> None:
    weight, x = random(outputs, inputs, seed=1), random(tokens, inputs, seed=2)
    wanted = x.double() @ weight.double().t()
    found = linear.linear(weight, None)(x)
    assert found.shape == (tokens, outputs)
    np.testing.assert_allclose(found.numpy(), wanted.numpy(), atol=3e-4)


@needs_vnni
@pytest.mark.parametrize("tokens", [1, 5, 96, 97, 300])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("inputs", [68, 1536])  # one group, and three
def test_int8_equals_the_one_of_torch(tokens: int, with_bias: bool, inputs: int) -> None:
    weight, x = random(150, inputs, seed=1), random(tokens, inputs, seed=2) * 3 + 2
    x[:, : inputs // 3] *= 20
    bias = random(150, seed=3) if with_bias else None
    wanted = cpu_int8.linear(weight, bias)(x)
    found = linear.int8_linear(weight, bias)(x)
    # A value between two steps may go to the other one: a step of a token, times a weight.
    step = (x.amax() - x.amin()) / 254 * weight.abs().amax()
    np.testing.assert_allclose(found.numpy(), wanted.numpy(), atol=2 * float(step))
    off = (found - wanted).abs() > 1e-5 * wanted.abs().amax()
    assert off.any(dim=1).float().mean() < 0.2


@needs_vnni
def test_int8_gated() -> None:
    weight, x = random(2 * 70, 64, seed=1), random(9, 64, seed=2)
    gate, up = linear.int8_linear(weight, None)(x).chunk(2, dim=1)
    found = linear.int8_linear(weight, None, gated=True)(x)
    # its exponential is within 1e-4
    torch.testing.assert_close(found, torch.nn.functional.silu(gate) * up, rtol=1e-4, atol=1e-5)


@needs_vnni
def test_what_a_token_gets_does_not_depend_on_the_batch() -> None:
    multiply, x = linear.int8_linear(random(192, 128, seed=1), None), random(250, 128, seed=2)
    together = multiply(x).clone()
    for first, last in ((0, 1), (3, 8), (90, 190), (249, 250)):
        torch.testing.assert_close(
            multiply(x[first:last].contiguous()), together[first:last], rtol=0, atol=0
        )


@needs_vnni
def test_a_token_of_one_value() -> None:
    """It has no range: the middle is all there is."""
    weight = random(64, 8, seed=1)
    found = linear.int8_linear(weight, None)(torch.full((2, 8), 3.0))
    np.testing.assert_allclose(found[0].numpy(), 3 * weight.sum(dim=1).numpy(), atol=0.2)
