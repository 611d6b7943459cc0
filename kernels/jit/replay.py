"""Forwards that were recorded once, run again for other tokens of the same number."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from branchline.kernels.jit.team import Program

if TYPE_CHECKING:
    from torch import Tensor

    from branchline.kernels.jit.attention import TilePlan
    from branchline.kernels.kernel_set import Compute

# Steps of more tokens come in any number, and recording them takes little of their time.
_MOST_TOKENS = 64
_MOST_PROGRAMS = 256


@dataclass(frozen=True, slots=True)
class _Recorded:
    tensors: tuple[Tensor, ...]  # what the program reads, with its plan
    plan: TilePlan
    program: Program
    out: Tensor  # what it writes


class Replay:
    """Runs functions of a few small tensors and a plan; see `KernelSet.make_run`."""

    def __init__(self) -> None:
        self._recorded: OrderedDict[tuple[int, ...], _Recorded] = OrderedDict()
        self._heads: tuple[int, int, int] | None = None  # what every plan is for

    def run(self, compute: Compute, tensors: tuple[Tensor, ...], plan: TilePlan) -> Tensor:
        """`compute(tensors, plan)`: always the same function, of tensors that may differ in length.

        A new length is recorded, with copies of the tensors; the last ones used are kept.
        """
        if len(tensors[0]) > _MOST_TOKENS:
            return _record(compute, tensors, plan).out
        key = self._key(tensors, plan)
        recorded = self._recorded.get(key)
        if recorded is None:
            copies = tuple(tensor.clone() for tensor in tensors)
            recorded = _record(compute, copies, plan)
            self._heads = plan.heads
            self._recorded[self._key(tensors, plan)] = recorded
            if len(self._recorded) > _MOST_PROGRAMS:
                self._recorded.popitem(last=False)
            return recorded.out
        self._recorded.move_to_end(key)
        for mine, given in zip(recorded.tensors, tensors, strict=True):
            mine.copy_(given)
        recorded.plan.take(plan)
        recorded.program.run()
        return recorded.out

    def _key(self, tensors: tuple[Tensor, ...], plan: TilePlan) -> tuple[int, ...]:
        """What decides which kernels are called, and for how much."""
        if self._heads is not None:
            plan.lay_out(self._heads)
        return (torch.get_num_threads(), plan.merges, *map(len, tensors))


def _record(compute: Compute, tensors: tuple[Tensor, ...], plan: TilePlan) -> _Recorded:
    """Record it, and run it for the first time."""
    program = Program()
    with program.record():
        out = compute(tensors, plan)
    program.run()
    return _Recorded(tensors, plan, program, out)
