"""Faults that other engines had with cached logits and stale memory, on the real model."""

from __future__ import annotations

import math

import pytest
import torch

from branchline.runtime.sizing import Limits

from .runs import Runs

LOGPROBS = 5e-4
LIMITS = Limits(pages=600, max_context=400)


@pytest.fixture(scope="module")
def prompt(smollm2) -> list[int]:
    text = "The quick brown fox jumps over the lazy dog while 7 wizards brew 23 potions. " * 3
    return smollm2.tokenizer.encode((("program", text),))


def next_logprobs(runs: Runs, prompt: list[int]) -> list[tuple[float, int]]:
    (request,) = runs.generate([prompt], [0], top_logprobs=20)
    return list(runs.ended[request].next_top)


def assert_close(ours: list[tuple[float, int]], right: list[tuple[float, int]]) -> None:
    assert [token for _, token in ours[:5]] == [token for _, token in right[:5]]
    ours_values = torch.tensor([value for value, _ in ours])
    torch.testing.assert_close(
        ours_values, torch.tensor([value for value, _ in right]), atol=LOGPROBS, rtol=0
    )


def test_an_exact_hit_gives_the_cold_logits(smollm2, prompt):
    runs = Runs(smollm2, LIMITS)
    cold = next_logprobs(runs, prompt)
    warm = next_logprobs(runs, prompt)
    assert_close(warm, cold)
    memory = runs.loop.scheduler.memory
    assert memory.tree.cached == len(prompt), "the hit appended nothing"


def test_an_aborted_prefill_leaves_what_it_wrote_and_nothing_else(smollm2, prompt):
    cold = next_logprobs(Runs(smollm2, LIMITS), prompt)
    runs = Runs(smollm2, LIMITS, chunk_tokens=16)
    (request,) = runs.requests([prompt], [4])
    runs.loop.submit([request])
    runs.loop.step(wait=False)
    runs.loop.abort([request])
    runs.loop.step(wait=False)
    assert runs.loop.scheduler.memory.tree.cached == 16
    assert_close(next_logprobs(runs, prompt), cold)


@pytest.mark.parametrize("where", ["start", "middle", "last"])
def test_prompt_logprobs_of_a_cached_prompt(smollm2, prompt, where):
    start = {"start": 0, "middle": len(prompt) // 2, "last": len(prompt) - 1}[where]
    runs = Runs(smollm2, LIMITS)
    cold, warm = (runs.generate([prompt], [2], logprob_start=start)[0] for _ in range(2))
    entries = [runs.prompt_logprobs[request] for request in (cold, warm)]
    for ours in entries:
        assert [entry.token for entry in ours] == prompt[start:]
        assert [entry.logprob is None for entry in ours] == [
            position == 0 for position in range(start, len(prompt))
        ]
    for ours, right in zip(*entries, strict=True):
        assert math.isclose(ours.logprob or 0, right.logprob or 0, abs_tol=LOGPROBS)
    assert runs.ids[warm] == runs.ids[cold]
    cached = runs.ended[warm].usage.cached_tokens
    assert cached == (min(start, len(prompt)) - 1 if start else 0)


def test_freed_pages_are_never_read(smollm2, prompt):
    """Free pages and the padding page hold NaN while two prompts share, decode and end."""
    alone = Runs(smollm2, LIMITS)
    right = [alone.ids[alone.generate([p], [32])[0]] for p in (prompt, prompt[:20])]
    runs = Runs(smollm2, LIMITS, chunk_tokens=16, overlap=True)
    requests = runs.requests([prompt, prompt, prompt[:20]], [32] * 3)
    runs.loop.submit(requests)
    runs.loop.step(wait=False)
    memory = runs.loop.scheduler.memory
    while not runs.loop.idle:
        runs.quiesce()
        poisoned = torch.from_numpy(memory.pool.free_pages().astype("int64"))
        for pools in smollm2.model._pools:
            for pool in pools:
                pool[poisoned] = math.nan
                pool[0] = math.nan
        runs.loop.step(wait=False)
    assert [runs.ids[request] for request in requests] == [right[0], right[0], right[1]]


def test_bias_penalties_and_masks_of_one_row_leave_its_neighbour(smollm2, prompt):
    runs = Runs(smollm2, LIMITS)
    (alone,) = runs.generate([prompt], [16])
    pair = runs.requests([prompt], [16]) + runs.requests(
        [prompt], [16], min_tokens=8, logit_bias={0: -100.0}, repetition_penalty=1.5
    )
    runs.run(pair)
    assert runs.ids[pair[0]] == runs.ids[alone]
