"""Requests that arrive, abort, finish and are retracted at random: right tokens, no page lost."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from .grammars import TokenGrammar, constrain, constrained
from .stub import DelayingStream, Harness, continuation, make_harness, make_request


def random_prompt(rng: random.Random) -> list[int]:
    """Prompts that share prefixes of every length."""
    family = rng.randrange(3)
    shared = [(family * 11 + i * i) % 53 for i in range(rng.choice([0, 5, 16, 30]))]
    return shared + [rng.randrange(1, 4) for _ in range(rng.randrange(1, 12))]


def random_request(rng: random.Random, *, grammars: bool = True):
    pairs = frozenset((rng.randrange(53), rng.randrange(53)) for _ in range(rng.choice([0, 200])))
    max_tokens = rng.choice([0, 1, 2, 7, 30, 38])
    request = make_request(
        random_prompt(rng),
        max_tokens=max_tokens,
        ignore_eos=rng.random() < 0.3,
        stop_pairs=pairs,
        salt=rng.choice([None, None, "a"]),
        stream=rng.random() < 0.5,
        logprob_start=rng.choice([None, None, 0, 1]),
        jump_forward=rng.random() < 0.8,
        min_tokens=rng.choice([0, 3]) if max_tokens > 3 else 0,
    )
    grammar = TokenGrammar.random(rng) if grammars and rng.random() < 0.4 else None
    if grammar is None:
        request.params = replace(request.params, min_tokens=0)
    else:
        constrain(request, grammar)
    return request, (pairs, grammar)


def expected(request, wanted) -> list[int]:
    pairs, grammar = wanted
    params = request.params
    if grammar is None or not params.max_tokens:
        output = continuation(request.prompt, params.max_tokens, ignore_eos=params.ignore_eos)
    else:
        output = constrained(
            grammar,
            request.prompt,
            max_tokens=params.max_tokens,
            min_tokens=params.min_tokens,
            ignore_eos=params.ignore_eos,
        )
    stops = 0 if grammar is not None or not params.ignore_eos else None
    for i in range(1, len(output)):
        if output[i] == stops:
            break
        if (output[i - 1], output[i]) in pairs:
            return output[: i + 1]
    return output


def live(harness: Harness, rng: random.Random, lives: int, abort_rate: float) -> None:
    asked = {}
    aborted = set()
    while len(asked) < lives or not harness.loop.idle:
        if len(asked) < lives and rng.random() < 0.5:
            batch = [random_request(rng) for _ in range(rng.randrange(1, 5))]
            asked.update(batch)
            harness.loop.submit([request for request, _ in batch])
        if rng.random() < abort_rate and asked:
            victim = rng.choice(list(asked)[-20:])
            aborted.add(victim)
            harness.loop.abort([victim])
        harness.step()
    harness.check_idle()
    for request, wanted in asked.items():
        right = expected(request, wanted)
        if harness.failures.get(request):
            assert request in aborted
            assert harness.output(request) == right[: len(harness.output(request))]
        else:
            assert harness.output(request) == right
            start = request.params.logprob_start
            scored = [p.token for u in harness.updates[request] for p in u.prompt_logprobs]
            assert scored == ([] if start is None else request.prompt[start:])


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(
    ("pages", "chunk", "budget", "cache"),
    [(90, 16, 64, True), (90, 3, 24, True), (400, 64, 64, True), (120, 16, 64, False)],
)
def test_random_lives(overlap, pages, chunk, budget, cache):
    harness = make_harness(
        pages=pages,
        max_context=80,
        chunk_tokens=chunk,
        max_batch_tokens=budget,
        overlap=overlap,
        cache=cache,
    )
    live(harness, random.Random(pages * chunk + overlap), 250, abort_rate=0.1)
    if pages == 90:
        assert harness.loop.scheduler.retractions > 0
        assert harness.loop.scheduler.memory.evicted > 0


def test_random_lives_on_a_delaying_stream():
    harness = make_harness(pages=90, max_context=80, overlap=True, stream=DelayingStream(5))
    live(harness, random.Random(1), 100, abort_rate=0.2)


@pytest.mark.parametrize("chunk", [16, 512])
def test_shared_prefix_is_computed_once(chunk):
    """64 requests over one uncached prefix: the prefix once, then the tails, whatever the chunk."""
    harness = make_harness(
        pages=4000, max_running=64, chunk_tokens=chunk, max_batch_tokens=128 if chunk == 16 else 512
    )
    prefix = [1 + i % 50 for i in range(1000)]
    requests = [make_request([*prefix, i % 53, 2 + i // 53], max_tokens=4) for i in range(64)]
    tails = {tuple(r.prompt[1000:i]) for r in requests for i in (1001, 1002)}
    harness.run(*requests)
    assert harness.loop.counters.computed_prompt_tokens <= 1000 + 2 * 64
    assert harness.loop.counters.computed_prompt_tokens >= 1000 + len(tails)
    for request in requests:
        assert harness.output(request) == continuation(request.prompt, 4)


def test_overlap_leaves_the_same_tree():
    trees = []
    for overlap in (False, True):
        harness = make_harness(pages=5000, overlap=overlap)
        rng = random.Random(3)
        harness.run(*(random_request(rng)[0] for _ in range(60)))
        trees.append(harness.loop.scheduler.memory.tree.sequences())
    assert trees[0] == trees[1]
