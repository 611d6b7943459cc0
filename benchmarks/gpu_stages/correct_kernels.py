"""Every other kernel on the device against its reference in float64."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from branchline.kernels import reference
from branchline.kernels.triton.activation import silu_mul
from branchline.kernels.triton.bitmask import apply_bitmask
from branchline.kernels.triton.norm import add_rms_norm, rms_norm
from branchline.kernels.triton.rope import rope_and_write
from branchline.runtime.sampling import SampleRow, sample
from branchline.runtime.sampling.device import DeviceSampler
from branchline.sampling_params import SamplingParams
from gpu_stages.cases import error
from gpu_stages.record import Row
from gpu_stages.targets import TOLERANCE
from gpu_stages.timer import poisoned

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from gpu_stages.bench import Bench

EPS = 1e-5
# What draws are compared for, each alone and all in one batch.
PARAMS = (
    SamplingParams(temperature=0.0),
    SamplingParams(),
    SamplingParams(temperature=0.7, min_p=0.05),
    SamplingParams(top_k=50),
    SamplingParams(top_p=0.9),
    SamplingParams(temperature=1.3, top_k=40, top_p=0.7),
    SamplingParams(temperature=2.0, top_k=300, top_p=0.95, min_p=0.02),
    SamplingParams(repetition_penalty=1.3, frequency_penalty=0.4, presence_penalty=0.2),
    SamplingParams(temperature=0.0, logit_bias={7: 30.0}, repetition_penalty=1.3),
)
DIFFERENT = 2  # % of draws: float32 exponentials differ in their last bits, so may boundaries


def run(bench: Bench) -> Iterator[Row]:
    """Errors of norms, rotation and activation; draws that differ from the CPU's."""
    yield from _elementwise(bench)
    yield _bitmask(bench)
    yield _draws(bench)


def _elementwise(bench: Bench) -> Iterator[Row]:
    model, most = bench.scale.model, TOLERANCE[str(bench.scale.dtype).removeprefix("torch.")]
    tokens, hidden = 7, model.hidden_size
    x, residual, weight = (
        bench.normal(tokens, hidden),
        bench.normal(tokens, hidden),
        bench.normal(hidden),
    )
    gate_up = bench.normal(tokens, 2 * model.intermediate_size)
    heads = bench.normal(tokens, model.heads + 2 * model.kv_heads, model.head_dim)
    with poisoned(), torch.inference_mode():
        found = [
            rms_norm(x, weight, EPS),
            rms_norm(heads[:, : model.heads], weight[: model.head_dim], EPS),
            *add_rms_norm(x, residual, weight, EPS),
            silu_mul(gate_up),
        ]
    normed, total = reference.add_rms_norm(x.double(), residual.double(), weight.double(), EPS)
    wanted = [
        reference.rms_norm(x.double(), weight.double(), EPS),
        reference.rms_norm(
            heads[:, : model.heads].double(), weight[: model.head_dim].double(), EPS
        ),
        normed,
        total,
        reference.silu_mul(gate_up.double()),
    ]
    names = ("rms_norm", "rms_norm of heads", "add_rms_norm", "its sum", "silu_mul")
    for name, ours, right in zip(names, found, wanted, strict=True):
        yield Row(name, error(ours, right), "error", most)
    yield from _rope(bench, heads, most)


def _rope(bench: Bench, qkv: Tensor, most: float) -> Iterator[Row]:
    """Also that a token of page 0 is written nowhere, and nothing beside the others."""
    model, tokens = bench.scale.model, len(qkv)
    q, k, v = qkv.split((model.heads, model.kv_heads, model.kv_heads), dim=1)
    angles = torch.rand(300, model.head_dim // 2, device=bench.device) * 6
    table = torch.cat((angles.cos(), angles.sin()), 1)
    positions = torch.randint(300, (tokens,), device=bench.device)
    pages = torch.arange(3, 3 + tokens, device=bench.device)
    pages[2] = 0
    shape = (tokens + 5, model.kv_heads, model.head_dim)
    pools = [torch.full(shape, float("nan"), dtype=qkv.dtype, device=bench.device) for _ in "kv"]
    with poisoned(), torch.inference_mode():
        rotated = rope_and_write(q, k, v, table, positions, pages, *pools)
    turn = table.double()[positions].unsqueeze(1)
    yield Row("rope", error(rotated, reference.rotate(q.double(), turn)), "error", most)
    written = pages != 0
    k_right = reference.rotate(k.double(), turn)[written]
    yield Row("rope of K, in its page", error(pools[0][pages[written]], k_right), "error", most)
    yield Row("V in its page", error(pools[1][pages[written]], v[written]), "error", 0.0)
    untouched = torch.ones(len(pools[0]), dtype=torch.bool, device=bench.device)
    untouched[pages[written]] = False
    strays = sum(int((~pool[untouched].isnan()).sum()) for pool in pools)
    yield Row("numbers written elsewhere", strays, "faults", 0)


def _bitmask(bench: Bench) -> Row:
    vocab = bench.scale.sampler_vocab - 3
    scores = bench.normal(3, vocab, dtype=torch.float32)
    words = torch.randint(-(2**31), 2**31, (2, -(-vocab // 32)), device=bench.device).int()
    wanted = scores.clone()
    bits = (words[:, :, None] >> torch.arange(32, device=bench.device)) & 1
    wanted[2] = wanted[2].masked_fill(bits[0].reshape(-1)[:vocab] == 0, float("-inf"))
    with torch.inference_mode():
        apply_bitmask(scores, words, torch.tensor([2, -1], dtype=torch.int32, device=bench.device))
    return Row("bitmask: logits that differ", int((scores != wanted).sum()), "faults", 0)


def _draws(bench: Bench) -> Row:
    """One batch of all parameters, several times over with other seeds and logits."""
    vocab, times = bench.scale.sampler_vocab, 8 if bench.on_device else 1
    rows = [
        SampleRow(
            params=params,
            seed=1234567 + number,
            position=50 + number,
            output_len=3,
            prompt_ids=torch.arange(0, 40, 3).numpy(),
            output_ids=torch.tensor([5, 9, 9]).numpy(),
        )
        for number, params in enumerate(PARAMS * times)
    ]
    count = len(rows)
    logits = 3 * bench.normal(count, vocab, dtype=torch.float32)
    last = torch.zeros(count, dtype=torch.int64, device=bench.device)
    sampler = DeviceSampler(count, vocab, bench.device, last)
    slots = torch.arange(count, device=bench.device)
    positions = torch.tensor([row.position for row in rows], device=bench.device)
    with poisoned(), torch.inference_mode():
        sampler.set_rows(range(count), rows)
        ids = sampler.sample(logits, slots, positions, sampler.mode(range(count)))
    wanted = sample(logits.cpu(), rows).ids
    different = int((ids.cpu() != wanted).sum())
    note = f"{different} of {count}, of {len(PARAMS)} kinds"
    return Row("draws other than the CPU's", different, "faults", count * DIFFERENT // 100, note)
