"""How fast everything but attention is: linears, the fused kernels, the sampler."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn import functional

from branchline.kernels.triton.activation import silu_mul
from branchline.kernels.triton.norm import add_rms_norm
from branchline.kernels.triton.rope import rope_and_write
from branchline.runtime.sampling import SampleRow
from branchline.runtime.sampling.device import DeviceSampler
from branchline.sampling_params import SamplingParams
from gpu_stages.record import Row
from gpu_stages.targets import LINEAR

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpu_stages.bench import Bench

FEW = 32  # tokens up to which a linear is a stream of its weight
PARAMS = {
    "greedy": SamplingParams(temperature=0.0),
    "drawn": SamplingParams(),
    "top-k, top-p": SamplingParams(top_k=50, top_p=0.9),
    "penalties": SamplingParams(top_k=50, top_p=0.9, frequency_penalty=0.5),
}


def run(bench: Bench) -> Iterator[Row]:
    """Percent of the copy bandwidth, or the time."""
    yield from _linears(bench)
    yield from _fused(bench)
    yield from _sampler(bench)


def _linears(bench: Bench) -> Iterator[Row]:
    """One layer's four, and the head, as one sequence: as a step has them."""
    model = bench.scale.model
    hidden, inner, head = model.hidden_size, model.intermediate_size, model.head_dim
    shapes = (
        ((model.heads + 2 * model.kv_heads) * head, hidden),
        (hidden, model.heads * head),
        (2 * inner, hidden),
        (hidden, inner),
        (model.vocab_size, hidden),
    )
    weights = [bench.normal(*shape) for shape in shapes]
    moved = sum(weight.numel() * weight.dtype.itemsize for weight in weights)
    for tokens in bench.scale.linear_tokens:
        inputs = [bench.normal(tokens, weight.shape[1]) for weight in weights]
        pairs = list(zip(inputs, weights, strict=True))

        def layer(pairs: list[tuple[torch.Tensor, torch.Tensor]] = pairs) -> None:
            for x, weight in pairs:
                functional.linear(x, weight)

        times = bench.timer.calls([layer])
        percent = bench.percent(moved, times.median)
        target = LINEAR if bench.on_device and tokens <= FEW else None
        note = f"{1e6 * times.median:.0f} us, {times.note}"
        yield Row(f"linears of {tokens} tokens: of copy", percent, "%", target, note)


def _fused(bench: Bench) -> Iterator[Row]:
    for tokens in (bench.scale.linear_tokens[0], bench.scale.long_extend):
        for name, (call, elements) in _fused_calls(bench, tokens).items():
            times = bench.timer.calls([call])
            moved = elements * bench.scale.dtype.itemsize
            note = f"{bench.percent(moved, times.median):.0f} % of copy, {times.note}"
            yield Row(f"{name} of {tokens} tokens", 1e6 * times.median, "us", note=note)


def _fused_calls(bench: Bench, tokens: int) -> dict[str, tuple[Callable[[], object], int]]:
    """Each kernel, and the elements that it reads and writes."""
    model = bench.scale.model
    x, residual = (bench.normal(tokens, model.hidden_size) for _ in range(2))
    weight = bench.normal(model.hidden_size)
    gate_up = bench.normal(tokens, 2 * model.intermediate_size)
    qkv = bench.normal(tokens, model.heads + 2 * model.kv_heads, model.head_dim)
    q, k, v = qkv.split((model.heads, model.kv_heads, model.kv_heads), dim=1)
    table = bench.normal(tokens + 1, model.head_dim, dtype=torch.float32)
    positions = torch.arange(tokens, device=bench.device)
    pools = [bench.normal(tokens + 1, model.kv_heads, model.head_dim) for _ in "kv"]
    pages = positions + 1
    return {
        "add_rms_norm": (lambda: add_rms_norm(x, residual, weight, 1e-5), 4 * x.numel()),
        "silu_mul": (lambda: silu_mul(gate_up), 3 * gate_up.numel() // 2),
        "rope, written": (
            lambda: rope_and_write(q, k, v, table, positions, pages, *pools),
            2 * qkv.numel(),
        ),
    }


def _sampler(bench: Bench) -> Iterator[Row]:
    for count in bench.scale.sampler_rows:
        for name, params in PARAMS.items():
            times = bench.timer.calls([_draw(bench, count, params)])
            yield Row(f"sampler {count} rows, {name}", 1e6 * times.median, "us", note=times.note)


def _draw(bench: Bench, count: int, params: SamplingParams) -> Callable[[], object]:
    vocab = bench.scale.sampler_vocab
    logits = bench.normal(count, vocab, dtype=torch.float32)
    slots = torch.arange(count, device=bench.device)
    sampler = DeviceSampler(count, vocab, bench.device, torch.zeros_like(slots))
    none = np.zeros(0, np.int64)
    row = SampleRow(params, 1, 9, 0, prompt_ids=none, output_ids=none)
    with torch.inference_mode():
        sampler.set_rows(range(count), [row] * count)
    mode = sampler.mode(range(count))
    return lambda: sampler.sample(logits, slots, slots, mode)
