"""How near a workload comes to its floor: the products and the attention it needs, and no more.

usage: python benchmarks/floor.py [WORKLOAD …] [--quantization int8] [--json FILE]

Runs each workload on an engine in this process and keeps the shape of every step. Then it times, in
the same process, only what no engine can leave out: the linears of all layers for as many tokens,
the head for as many logits, and attention over the same plan. The floor is their sum over all
steps; the rest is norms, sampling, the loop, the client. Also shown is the share of the run spent
planning attention and merging its parts.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from report import number, table
from workloads import GREEDY, WORKLOADS, complete

import branchline as bl
from branchline.runtime.models.decoder import Decoder

if TYPE_CHECKING:
    from collections.abc import Callable

    from branchline.runtime.models.inputs import ForwardInputs

REPEATS = 3


@dataclass(frozen=True, slots=True)
class Floor:
    """Seconds of one workload."""

    workload: str
    run: float
    linears: float
    attention: float
    planning: float

    @property
    def share(self) -> float:
        """How much of the run was the floor."""
        return (self.linears + self.attention) / self.run


class Watched:
    """The model of the engine in this process, and the steps it was asked for."""

    def __init__(self) -> None:
        self.model: Decoder | None = None
        self.steps: list[ForwardInputs] = []
        self._forward = Decoder.forward

    def watch(self) -> None:
        """Keep the inputs of every forward from here on."""

        def forward(model: Decoder, inputs: ForwardInputs) -> torch.Tensor:
            self.model = model
            rows = inputs.page_table[inputs.slots].clone()
            kept = replace(inputs, page_table=rows, slots=list(range(len(inputs.slots))))
            self.steps.append(kept)
            return self._forward(model, inputs)

        Decoder.forward = forward  # type: ignore[method-assign]

    def floor(self) -> tuple[float, float, float]:
        """Seconds of the linears, of attention and of planning it, over all steps."""
        assert self.model is not None
        linears = attention = planning = 0.0
        known: dict[tuple[int, int], float] = {}
        for step in self.steps:
            shape = len(step.input_ids), len(step.logit_rows)
            if shape not in known:
                known[shape] = time_linears(self.model, step)
            linears += known[shape]
            plan_seconds, attention_seconds = time_attention(self.model, step)
            planning += plan_seconds
            attention += attention_seconds
        return linears, attention, planning


def best(work: Callable[[], Any]) -> float:
    """The least seconds of a few tries."""
    seconds = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


@torch.inference_mode()
def time_linears(model: Any, step: ForwardInputs) -> float:
    """Seconds of all products of a forward, on numbers at random."""
    config, kernels = model.config, model._kernels
    tokens = len(step.input_ids)
    sizes = config.hidden_size, config.heads * config.head_dim, config.intermediate_size

    def compute(tensors: tuple[torch.Tensor, ...], _plan: Any) -> torch.Tensor:
        x, heads, inner = tensors
        for layer in model._layers:
            layer.qkv(x)
            layer.output(heads)
            layer.gated(x)
            layer.down(inner)
        logits: torch.Tensor = model._head(x[: len(step.logit_rows)])
        return logits

    inputs = tuple(torch.randn(tokens, size) for size in sizes)
    run, plan = kernels.make_run(), plan_of(kernels, step)
    return best(lambda: run(compute, inputs, plan))


@torch.inference_mode()
def time_attention(model: Any, step: ForwardInputs) -> tuple[float, float]:
    """Seconds of the plan, and of attention in all layers."""
    config, kernels = model.config, model._kernels

    def compute(tensors: tuple[torch.Tensor, ...], plan: Any) -> torch.Tensor:
        (q,) = tensors
        for pools in model._pools:
            out: torch.Tensor = kernels.attention(q, *pools, plan, 0.1)
        return out

    q = torch.randn(len(step.input_ids), config.heads, config.head_dim)
    run = kernels.make_run()
    start = time.perf_counter()
    plan = plan_of(kernels, step)
    kernels.attention(q, *model._pools[0], plan, 0.1)  # the tiles are laid out here
    planned = time.perf_counter()
    kernels.attention(q, *model._pools[0], plan, 0.1)
    planning = 2 * planned - start - time.perf_counter()
    run(compute, (q,), plan)
    start = time.perf_counter()
    run(compute, (q,), plan)
    return max(0.0, planning), time.perf_counter() - start


def plan_of(kernels: Any, step: ForwardInputs) -> Any:
    return kernels.plan(step.q_indptr, step.kv_lens, step.page_table, step.slots, step.segments)


def measure(name: str, quantization: str | None) -> Floor:
    watched = Watched()
    watched.watch()
    with bl.Engine(quantization=quantization, cache=True) as engine:
        bl.set_default_backend(engine)
        complete.run("Hello", 4, **GREEDY).sync()  # everything is loaded and compiled
        watched.steps.clear()
        start = time.perf_counter()
        WORKLOADS[name]()
        seconds = time.perf_counter() - start
        # On the engine's own thread: a second team of threads would disturb the first.
        stream = engine._loop._runner._stream
        linears, attention, planning = stream.submit(watched.floor).result()
    Decoder.forward = watched._forward  # type: ignore[method-assign]
    return Floor(name, seconds, linears, attention, planning)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("workloads", nargs="*", default=["single", "batch32", "fewshot64"])
    parser.add_argument("--quantization", choices=["int8"])
    parser.add_argument("--json", type=Path, help="write the figures here too")
    arguments = parser.parse_args()
    floors = [measure(name, arguments.quantization) for name in arguments.workloads]
    head = ["workload", "run s", "linears s", "attention s", "floor / run", "planning / run"]
    rows = [
        [
            one.workload,
            *(number(x, 2) for x in (one.run, one.linears, one.attention)),
            f"{one.share:.0%}",
            f"{one.planning / one.run:.1%}",
        ]
        for one in floors
    ]
    print(table(head, rows))
    if arguments.json:
        figures = [
            {"workload": one.workload, "run": one.run, "linears": one.linears,
             "attention": one.attention, "planning": one.planning}
            for one in floors
        ]  # fmt: skip
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
