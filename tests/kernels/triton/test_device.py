"""The whole set, as a layer of a model uses it, against the reference in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from branchline.kernels import KernelSet, Segment, reference_kernels
from branchline.kernels.triton.device import triton_kernels

from .compare import assert_close, random

HEADS, KV_HEADS, SIZE, PAGES = 4, 2, 16, 64
NEW, LENGTHS = [1, 3, 1], [21, 24, 7]  # tokens of each row that are computed, and all of them
SHARED = Segment(start=0, end=19, rows=(0, 1))


def page_table() -> Tensor:
    """Pages of the rows in random order, rows 0 and 1 beginning with the same; slot 0 is unused."""
    order = torch.randperm(PAGES - 1, generator=torch.Generator().manual_seed(4)) + 1
    table = torch.zeros((4, 32), dtype=torch.int32)
    table[3, :21] = order[:21]
    table[1, :24] = torch.cat((order[:19], order[21:26]))
    table[2, :7] = order[26:33]
    return table


def layer(kernels: KernelSet, pool: Tensor, qkv: Tensor, norms: Tensor) -> list[Tensor]:
    """Norm, heads' norm, rotation, attention, residual, MLP: what comes out, and the pools."""
    table, slots = page_table(), [3, 1, 2]
    ends = torch.tensor(LENGTHS)
    positions = torch.cat(
        [torch.arange(end - new, end) for new, end in zip(NEW, ends, strict=True)]
    )
    pages = torch.cat(
        [table[slot, end - new : end] for slot, new, end in zip(slots, NEW, ends, strict=True)]
    )
    pages = pages.long()
    pages[1] = 0  # computed once more: its page has K and V
    k_pool, v_pool = pool.clone(), pool.flip(0)
    cos_sin = torch.cat(
        (random(32, SIZE // 2, seed=7).cos(), random(32, SIZE // 2, seed=7).sin()), 1
    )
    plan = kernels.plan([0, 1, 4, 5], LENGTHS, table, slots, [SHARED])

    x = kernels.rms_norm(qkv, norms, 1e-5)
    q, k, v = x.view(5, -1, SIZE).split((HEADS, KV_HEADS, KV_HEADS), dim=1)
    q = kernels.rms_norm(q, norms[:SIZE], 1e-5)
    q = kernels.rope_and_write(q, k, v, cos_sin.to(q.dtype), positions, pages, k_pool, v_pool)
    out = kernels.attention(q, k_pool, v_pool, plan, SIZE**-0.5).view(5, -1)
    out = torch.cat((out, out), dim=1)
    normed, total = kernels.add_rms_norm(out, qkv, norms, 1e-5)
    return [kernels.silu_mul(normed), total, k_pool[pages], v_pool[pages]]


def test_a_layer_equals_the_reference() -> None:
    width = (HEADS + 2 * KV_HEADS) * SIZE
    pool, qkv = random(PAGES, KV_HEADS, SIZE), random(5, width, seed=1)
    norms = random(width, seed=2)
    found = layer(triton_kernels("cpu"), pool, qkv, norms)
    wanted = layer(reference_kernels(), pool.double(), qkv.double(), norms.double())
    for ours, theirs in zip(found[:2], wanted[:2], strict=True):
        assert_close(ours, theirs)
    written = [0, 2, 3, 4]
    for ours, theirs in zip(found[2:], wanted[2:], strict=True):
        assert_close(ours[written], theirs[written])


def test_a_device_that_kernels_were_not_imported_for_is_refused() -> None:
    with pytest.raises(AssertionError, match="TRITON_INTERPRET"):
        triton_kernels("cuda")
