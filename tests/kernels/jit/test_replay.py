"""Recorded forwards: the same numbers whatever is replayed, nothing computed while recording."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from branchline.kernels import KernelSet, reference_kernels
from branchline.kernels.jit.arena import Arena
from branchline.kernels.jit.device import jit_kernels
from branchline.kernels.jit.team import jit_is_available

pytestmark = pytest.mark.skipif(not jit_is_available(), reason="no OpenMP to run on")
HIDDEN, HEADS, KV_HEADS, SIZE = 48, 4, 2, 16


class Layers:
    """Two layers of a decoder, small, on any kernels."""

    def __init__(self, kernels: KernelSet) -> None:
        generator = torch.Generator().manual_seed(0)

        def random(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator) / 4

        self.kernels, self.run = kernels, kernels.make_run()
        self.embedding, self.norm = random(90, HIDDEN), random(HIDDEN) + 1
        angles = random(200, SIZE // 2)
        self.table = torch.cat((angles.cos(), angles.sin()), dim=1)
        self.layers = [
            (
                kernels.linear(random((HEADS + 2 * KV_HEADS) * SIZE, HIDDEN), None),
                kernels.linear(random(HIDDEN, HEADS * SIZE), None),
                kernels.gated_linear(random(2 * 72, HIDDEN), None),
                kernels.linear(random(HIDDEN, 72), None),
                *(kernels.zeros((400, KV_HEADS, SIZE), dtype=torch.float32) for _ in range(2)),
            )
            for _ in range(2)
        ]

    def compute(self, tensors: tuple[Tensor, ...], plan: Any) -> Tensor:
        kernels = self.kernels
        ids, positions, pages, rows = tensors
        residual = kernels.gather(self.embedding, ids)
        x = kernels.rms_norm(residual, self.norm, 1e-5)
        for qkv, output, gated, down, k_pool, v_pool in self.layers:
            heads = qkv(x).view(len(x), -1, SIZE)
            q, k, v = heads.split((HEADS, KV_HEADS, KV_HEADS), dim=1)
            q, k = (kernels.rms_norm(part, self.norm[:SIZE], 1e-5) for part in (q, k))
            q = kernels.rope_and_write(q, k, v, self.table, positions, pages, k_pool, v_pool)
            x = output(kernels.attention(q, k_pool, v_pool, plan, 0.3).view(len(x), -1))
            x, residual = kernels.add_rms_norm(x, residual, self.norm, 1e-5)
            x, residual = kernels.add_rms_norm(down(gated(x)), residual, self.norm, 1e-5)
        return kernels.gather(x, rows)

    def step(self, queries: list[int], lengths: list[int], seed: int) -> Tensor:
        """Rows with so many queries, their last ones, and so many positions."""
        generator = torch.Generator().manual_seed(seed)
        table = torch.zeros(len(lengths), max(lengths), dtype=torch.int64)
        order = torch.randperm(399, generator=generator) + 1
        used = 0
        for row, length in enumerate(lengths):
            table[row, :length] = order[used : used + length]
            used += length
        at = [
            (row, length - count + i)
            for row, (count, length) in enumerate(zip(queries, lengths, strict=True))
            for i in range(count)
        ]
        indptr = [0, *torch.tensor(queries).cumsum(0).tolist()]
        ids = torch.randint(90, (len(at),), generator=generator)
        positions = torch.tensor([position for _, position in at])
        pages = torch.tensor([int(table[row, position]) for row, position in at])
        rows = torch.tensor(indptr[1:]) - 1
        plan = self.kernels.plan(indptr, lengths, table, list(range(len(lengths))), ())
        return self.run(self.compute, (ids, positions, pages, rows), plan)


# Equal numbers of tokens again and again: the second time is a replay, of other rows too.
STEPS = [
    ([1, 1], [20, 31]),
    ([1, 1], [21, 32]),
    ([2], [9]),
    ([2], [10]),
    ([70], [90]),
    ([70], [70]),
    ([1, 1], [150, 3]),
]


def test_equals_the_reference() -> None:
    compiled, reference = Layers(jit_kernels()), Layers(reference_kernels())
    for seed, (queries, lengths) in enumerate(STEPS):
        found = compiled.step(queries, lengths, seed).clone()
        wanted = reference.step(queries, lengths, seed)
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


class OnlyViews(TorchDispatchMode):
    """Refuses what would read numbers that are not computed yet."""

    # `lift_fresh` is how torch takes in an array of numpy.
    ALLOWED = ("view", "split", "split_with_sizes", "slice", "detach", "alias", "lift_fresh")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name().removeprefix("aten::").split(".")[0].removeprefix("_")
        assert name in self.ALLOWED, f"{func.name()} while recording"
        return func(*args, **(kwargs or {}))


def test_nothing_is_computed_while_recording() -> None:
    layers = Layers(jit_kernels())

    def compute(tensors: tuple[Tensor, ...], plan: Any) -> Tensor:
        plan.lay_out((HEADS // KV_HEADS, KV_HEADS, SIZE))
        with OnlyViews():
            return Layers.compute(layers, tensors, plan)

    layers.compute = compute  # type: ignore[method-assign]
    for seed, (queries, lengths) in enumerate(STEPS[:3]):
        layers.step(queries, lengths, seed)


def test_an_arena_hands_out_only_what_nobody_has() -> None:
    arena = Arena()
    first = arena.empty(3, 50)
    view = first.view(150)[7:]
    address = first.data_ptr()
    del first
    gc.collect()
    assert arena.empty(3, 50).data_ptr() != address, "a view keeps the memory"
    del view
    gc.collect()
    assert arena.empty(3, 50).data_ptr() == address
    assert address % 64 == 0
