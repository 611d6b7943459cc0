"""The device's runner on the model that cannot be fooled: buckets, steady steps, lives."""

from __future__ import annotations

import random

import pytest

from branchline.runtime.memory import RESERVED

from ..stub import continuation, make_request
from ..test_lives import live
from .devices import BUCKETS, device_harness

PROMPT = [5 + i % 40 for i in range(40)]


def run_steps(harness, *requests, until) -> None:
    harness.loop.submit(requests)
    while not until():
        harness.step()


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(
    ("pages", "chunk", "budget", "steps"), [(90, 16, 64, 64), (90, 3, 24, 2), (400, 64, 64, 1)]
)
def test_random_lives(overlap, pages, chunk, budget, steps):
    harness = device_harness(
        pages=pages,
        max_context=80,
        chunk_tokens=chunk,
        max_batch_tokens=budget,
        overlap=overlap,
        steps=steps,
    )
    live(harness, random.Random(pages * chunk + overlap), 150, abort_rate=0.1)
    if pages == 90:
        assert harness.loop.scheduler.retractions > 0


def test_a_steady_decode_copies_nothing_to_the_device():
    harness = device_harness(overlap=True)
    requests = [make_request([i, 2, 3], max_tokens=100, ignore_eos=True) for i in range(1, 4)]
    run_steps(harness, *requests, until=lambda: requests[0].output_len == 5)
    staging = harness.runner.staging
    before, start = staging.sends, requests[0].output_len
    run_steps(harness, until=lambda: requests[0].output_len == start + 3 * RESERVED)
    assert staging.sends - before == 3, "once for the pages that are reserved ahead"
    harness.run()
    for request in requests:
        assert harness.output(request) == continuation(request.prompt, 100, ignore_eos=True)


def test_a_plan_that_has_grown_enough_is_made_again():
    harness = device_harness(overlap=True, steps=5)
    request = make_request([1, 2, 3], max_tokens=60, ignore_eos=True)
    run_steps(harness, request, until=lambda: request.output_len == 2)
    before = harness.runner.staging.sends
    run_steps(harness, until=lambda: request.output_len == 2 + 30)
    assert harness.runner.staging.sends - before == pytest.approx(5 + 2, abs=1)
    harness.run()
    assert harness.output(request) == continuation(request.prompt, 60, ignore_eos=True)


def test_a_batch_is_padded_to_the_next_bucket():
    harness = device_harness(chunk_tokens=64)
    requests = [make_request([i, 2, 3], max_tokens=9, ignore_eos=True) for i in range(1, 6)]
    harness.run(*requests)
    assert harness.model.sizes[0] == 16, "15 tokens"
    assert set(harness.model.sizes[1:]) == {8}, "5 rows"
    for request in requests:
        assert harness.output(request) == continuation(request.prompt, 9, ignore_eos=True)


def test_what_is_larger_than_all_buckets_runs_as_it_comes():
    most = BUCKETS[-1]
    harness = device_harness(max_batch_tokens=3 * most, chunk_tokens=3 * most)
    request = make_request(PROMPT * 4, max_tokens=5, ignore_eos=True)
    harness.run(request)
    assert harness.model.sizes[0] == 160
    assert harness.output(request) == continuation(request.prompt, 5, ignore_eos=True)


def test_logprobs_of_prompts_and_outputs():
    """Captured where they are few; the stub gives its next token a logit of 10, the others 0."""
    harness = device_harness()
    requests = [
        make_request([i, *PROMPT], max_tokens=6, ignore_eos=True, top_logprobs=2, logprob_start=0)
        for i in range(1, 4)
    ] + [make_request([9, 9], max_tokens=8, ignore_eos=True)]
    harness.run(*requests)
    for request in requests[:-1]:
        right = continuation(request.prompt, 6, ignore_eos=True)
        assert harness.output(request) == right
        updates = harness.updates[request]
        scored = [entry for update in updates for entry in update.prompt_logprobs]
        assert [entry.token for entry in scored] == request.prompt
        drawn = [entry for update in updates for entry in update.logprobs]
        assert [entry.token for entry in drawn] == right
        assert all(entry.logprob > -0.1 for entry in drawn)
        for index, entry in enumerate(scored[1:], start=1):
            best = continuation(request.prompt[:index], 1, ignore_eos=True)[0]
            assert entry.top[0][1] == best
            assert (entry.logprob > -0.1) == (entry.token == best)
            assert len(entry.top) == 2
    assert harness.output(requests[-1]) == continuation([9, 9], 8, ignore_eos=True)


def test_the_sampler_is_told_of_a_request_once_an_admission():
    harness = device_harness(pages=90, max_context=60, chunk_tokens=8)
    requests = [
        make_request([i, *PROMPT[:20]], max_tokens=30, ignore_eos=True) for i in range(1, 5)
    ]
    harness.run(*requests)
    retractions = harness.loop.scheduler.retractions
    assert retractions > 0
    assert len(requests) < len(harness.sampler.slots) <= len(requests) + retractions


def test_a_slot_that_changes_hands_in_one_step():
    harness = device_harness(max_running=1, pages=200)
    requests = [
        make_request([i, *PROMPT[: 3 * i]], max_tokens=4, ignore_eos=True) for i in range(1, 9)
    ]
    harness.run(*requests)
    for request in requests:
        assert harness.output(request) == continuation(request.prompt, 4, ignore_eos=True)
