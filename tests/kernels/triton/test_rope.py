"""RoPE and the write of K and V: products of complex numbers, pages poisoned and compared."""

import pytest
import torch
from torch import Tensor

from branchline.kernels.triton.rope import rope_and_write

from .compare import assert_close, random

NAN = float("nan")


def table(positions: int, size: int) -> Tensor:
    angles = random(positions, size // 2, seed=9).double()
    return torch.cat((angles.cos(), angles.sin()), dim=1).float()


def turned(x: Tensor, angles: Tensor) -> Tensor:
    """x [T, H, D] turned by the angles [T, D] of its tokens, as complex numbers."""
    half = x.shape[-1] // 2
    pairs = torch.complex(x.double()[..., :half], x.double()[..., half:])
    pairs = pairs * torch.complex(angles.double()[:, :half], angles.double()[:, half:])[:, None]
    return torch.cat((pairs.real, pairs.imag), dim=-1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "size"), [(1, 1, 16), (4, 2, 32), (9, 3, 64), (17, 9, 16)]
)
def test_rotates_and_writes(heads: int, kv_heads: int, size: int, dtype: torch.dtype) -> None:
    tokens = 5
    qkv = random(tokens, heads + 2 * kv_heads, size, dtype=dtype)
    q, k, v = qkv.split((heads, kv_heads, kv_heads), dim=1)
    before, cos_sin = qkv.clone(), table(40, size)
    positions, pages = torch.tensor([3, 39, 0, 7, 8]), torch.tensor([9, 2, 0, 11, 0])
    k_pool, v_pool = (torch.full((12, kv_heads, size), NAN, dtype=dtype) for _ in range(2))

    rotated = rope_and_write(q, k, v, cos_sin, positions, pages, k_pool, v_pool)

    angles = cos_sin[positions]
    assert rotated.is_contiguous()
    assert_close(rotated, turned(q, angles))
    written = [0, 1, 3]
    assert_close(k_pool[pages[written]], turned(k, angles)[written])
    assert torch.equal(v_pool[pages[written]], v[written])
    untouched = [0, 1, 3, 4, 5, 6, 7, 8, 10]  # page 0 among them: two tokens are of it
    assert k_pool[untouched].isnan().all()
    assert v_pool[untouched].isnan().all()
    assert torch.equal(qkv, before)


def test_of_separate_tensors() -> None:
    q, k, v = random(2, 4, 16), random(2, 2, 16, seed=1), random(2, 2, 16, seed=2)
    cos_sin, positions, pages = table(8, 16), torch.tensor([7, 1]), torch.tensor([1, 2])
    k_pool, v_pool = torch.full((3, 2, 16), NAN), torch.full((3, 2, 16), NAN)
    rotated = rope_and_write(q, k, v, cos_sin, positions, pages, k_pool, v_pool)
    assert_close(rotated, turned(q, cos_sin[positions]))
    assert_close(k_pool[1:], turned(k, cos_sin[positions]))
    assert torch.equal(v_pool[1:], v)


def test_padding_has_no_effect_whatever_it_holds() -> None:
    """Tokens of page 0 may be NaN: a captured batch is longer than what runs in it."""
    q, k, v = random(3, 2, 16), random(3, 1, 16, seed=1), random(3, 1, 16, seed=2)
    pools, pages = [torch.full((4, 1, 16), NAN) for _ in range(4)], torch.tensor([3, 1])
    cos_sin, positions = table(8, 16), torch.tensor([5, 6, 0])
    alone = rope_and_write(q[:2], k[:2], v[:2], cos_sin, positions[:2], pages, *pools[:2])
    for one in (q, k, v):
        one[2] = NAN
    padded = torch.cat((pages, torch.tensor([0])))
    longer = rope_and_write(q, k, v, cos_sin, positions, padded, *pools[2:])
    assert torch.equal(longer[:2], alone)
    for pool, same in zip(pools[:2], pools[2:], strict=True):
        assert torch.equal(pool, same) or torch.equal(pool.nan_to_num(), same.nan_to_num())
        assert same[[0, 2]].isnan().all()
