"""Every kernel set against its formula in float64 numpy."""

import numpy as np
import pytest
import torch
from torch import Tensor

from branchline.kernels import KernelSet

from .sets import SETS


@pytest.fixture(params=SETS, ids=lambda kernels: kernels.name)
def kernels(request: pytest.FixtureRequest) -> KernelSet:
    return request.param


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def assert_equal(found: Tensor, wanted: np.ndarray, tolerance: float = 2e-5) -> None:
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found.numpy(), wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("rows", [0, 1, 2, 7, 8, 9, 65])
@pytest.mark.parametrize("with_bias", [False, True])
def test_linear(kernels: KernelSet, rows: int, with_bias: bool) -> None:
    weight, x = random(37, 29, seed=1), random(rows, 29, seed=2)
    bias = random(37, seed=3) if with_bias else None
    wanted = x.double().numpy() @ weight.double().numpy().T
    if bias is not None:
        wanted += bias.double().numpy()
    found = kernels.linear(weight, bias)(x)
    assert found.shape == (rows, 37)
    assert_equal(found, wanted)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> np.ndarray:
    x64 = x.double().numpy()
    return x64 / np.sqrt((x64**2).mean(-1, keepdims=True) + eps) * weight.double().numpy()


def test_rms_norm(kernels: KernelSet) -> None:
    x, weight = random(5, 33) * 1e-2, random(33, seed=1)
    assert_equal(kernels.rms_norm(x, weight, 1e-3), rms_norm(x, weight, 1e-3))


def test_rms_norm_of_each_head_in_a_part_of_a_tensor(kernels: KernelSet) -> None:
    x, weight = random(5, 6, 16)[:, 1:4], random(16, seed=1)
    assert_equal(kernels.rms_norm(x, weight, 1e-6), rms_norm(x, weight, 1e-6))


def test_add_rms_norm(kernels: KernelSet) -> None:
    x, residual, weight = random(3, 32), random(3, 32, seed=1), random(32, seed=2)
    normed, total = kernels.add_rms_norm(x, residual, weight, 1e-5)
    assert_equal(total, (x.double() + residual.double()).numpy())
    assert_equal(normed, rms_norm(x.double() + residual.double(), weight, 1e-5))


def test_silu_mul(kernels: KernelSet) -> None:
    gate_up = random(4, 2 * 31) * 4
    gate, up = np.split(gate_up.double().numpy(), 2, axis=-1)
    assert_equal(kernels.silu_mul(gate_up), gate / (1 + np.exp(-gate)) * up)


def test_gather(kernels: KernelSet) -> None:
    x, rows = random(9, 33), torch.tensor([8, 0, 0, 3])
    torch.testing.assert_close(kernels.gather(x, rows), x[rows], rtol=0, atol=0)
    assert kernels.gather(x, rows[:0]).shape == (0, 33)


def test_silu_of_what_is_far_from_zero(kernels: KernelSet) -> None:
    """Its exponential leaves float32 on both sides; gates of hundreds do occur."""
    gate = torch.tensor([[-3000.0, -300.0, -100.0, -89.0, -88.0, -20.0, 0.0, 89.0, 300.0]])
    up = torch.full_like(gate, 2.0)
    found = kernels.silu_mul(torch.cat((gate, up), dim=1))
    wanted = (2 * gate.double() / (1 + (-gate.double()).exp())).numpy()
    assert_equal(found, wanted)
    weight = torch.cat((gate.t(), up.t()))  # of one input, which is 1
    assert_equal(kernels.gated_linear(weight, None)(torch.ones(1, 1)), wanted)


@pytest.mark.parametrize("rows", [1, 5, 49, 130])
@pytest.mark.parametrize("with_bias", [False, True])
def test_gated_linear(kernels: KernelSet, rows: int, with_bias: bool) -> None:
    weight, x = random(2 * 75, 29, seed=1), random(rows, 29, seed=2)
    bias = random(2 * 75, seed=3) if with_bias else None
    both = x.double().numpy() @ weight.double().numpy().T
    if bias is not None:
        both += bias.double().numpy()
    gate, up = np.split(both, 2, axis=-1)
    wanted = gate / (1 + np.exp(-gate)) * up
    assert_equal(kernels.gated_linear(weight, bias)(x), wanted, 1e-4)


def test_rope_rotates_pairs_and_writes_to_pages(kernels: KernelSet) -> None:
    tokens, heads, kv_heads, size = 5, 6, 2, 8
    qkv = random(tokens, heads + 2 * kv_heads, size)
    q, k, v = qkv.split((heads, kv_heads, kv_heads), dim=1)
    angles = random(40, size // 2, seed=1).double()
    table = torch.cat((angles.cos(), angles.sin()), dim=1).float()
    positions, pages = torch.tensor([3, 39, 0, 7, 8]), torch.tensor([9, 2, 0, 11, 0])
    k_pool, v_pool = torch.zeros(12, kv_heads, size), torch.zeros(12, kv_heads, size)

    rotated = kernels.rope_and_write(q, k, v, table, positions, pages, k_pool, v_pool)

    def turn(x: Tensor) -> np.ndarray:  # as a product of complex numbers
        half = size // 2
        pairs = x.double().numpy()[..., :half] + 1j * x.double().numpy()[..., half:]
        pairs = pairs * np.exp(1j * angles.numpy()[positions])[:, None]
        return np.concatenate((pairs.real, pairs.imag), axis=-1)

    assert_equal(rotated, turn(q))
    written = [0, 1, 3]  # two tokens share page 0, whose content does not matter
    assert_equal(k_pool[pages[written]], turn(k)[written])
    assert_equal(v_pool[pages[written]], v[written].double().numpy())
    untouched = [1, 3, 4, 5, 6, 7, 8, 10]
    assert not k_pool[untouched].any()
    assert not v_pool[untouched].any()
