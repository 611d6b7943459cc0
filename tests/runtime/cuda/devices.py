"""Loops on the device's runner: over the model that cannot be fooled, and over a tiny real one."""

from __future__ import annotations

import torch

from branchline.runtime.config import RuntimeConfig
from branchline.runtime.cuda.build import build_runner
from branchline.runtime.cuda.graphs import RecordedGraphs
from branchline.runtime.cuda.queue import HostQueue
from branchline.runtime.loop import Loop
from branchline.runtime.models.config import DecoderConfig
from branchline.runtime.models.decoder import Decoder
from branchline.runtime.models.inputs import ForwardInputs
from branchline.runtime.models.rope import RopeConfig
from branchline.runtime.sizing import Limits

from ..stub import Harness, PrefixHashModel
from .reference import GreedySampler, Planner

BUCKETS = (1, 2, 4, 8, 16, 32, 64)
TINY = DecoderConfig(
    architecture="llama",
    vocab_size=128,
    context_length=512,
    hidden_size=64,
    intermediate_size=96,
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=16,
    norm_eps=1e-5,
    rope=RopeConfig(10000.0),
    tied=True,
)


class PlannedHashModel(PrefixHashModel):
    """The stub, told of its rows by a plan on the device."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []  # tokens of each forward, padding included

    def compute(self, tokens, plan) -> torch.Tensor:
        self.sizes.append(len(tokens.input_ids))
        used = plan.q_indptr[-1]
        assert not tokens.write_pages[used:].any(), "padding writes"
        inputs = ForwardInputs(
            input_ids=tokens.input_ids[:used],
            positions=tokens.positions[:used],
            write_pages=tokens.write_pages[:used],
            logit_rows=tokens.logit_rows,
            q_indptr=plan.q_indptr,
            kv_lens=plan.kv_lens,
            page_table=plan.page_table,
            slots=plan.slots,
        )
        return self.forward(inputs)


class RandomWeights:
    """Whatever is asked for."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def take(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        weight = torch.randn(shape, generator=self._generator) * 0.2
        return weight + 1.0 if "norm" in name else weight

    def left(self) -> list[str]:
        return []


def tiny_model(kernels) -> Decoder:
    """Two layers, the same weights each time."""
    return Decoder(TINY, RandomWeights(5), kernels, torch.float32)


def settings_of(**settings) -> RuntimeConfig:
    return RuntimeConfig(
        **{"max_running": 16, "max_batch_tokens": 64, "chunk_tokens": 16, **settings}
    )


def harness_on(runner, model, config: RuntimeConfig, limits: Limits) -> Harness:
    harness = Harness()
    harness.model = model
    harness.runner = runner
    harness.loop = Loop(
        runner,
        config,
        limits,
        model_name="stub",
        segment_cost=model.segment_cost,
        on_events=harness.take,
    )
    return harness


def device_harness(
    *, pages: int = 1000, max_context: int | None = None, steps: int = 64, model=None, **settings
) -> Harness:
    """A loop on the device's runner with plain parts."""
    config = settings_of(**settings)
    limits = Limits(pages, max_context or pages - 1)
    model = model or PlannedHashModel()
    samplers = []

    def sampler(tables) -> GreedySampler:
        samplers.append(GreedySampler(tables.last_token))
        return samplers[0]

    runner = build_runner(
        model,
        config,
        limits,
        HostQueue(check_syncs=config.check_syncs),
        RecordedGraphs(),
        lambda tables: Planner(tables.page_table, steps),
        sampler,
        modes=(0, 1),
        buckets=BUCKETS,
    )
    harness = harness_on(runner, model, config, limits)
    harness.sampler = samplers[0]
    return harness
