"""Faults that other engines had with pages and lives, with their right values, on the stub."""

from __future__ import annotations

import pytest

from .stub import DelayingStream, continuation, make_harness, make_request

PROMPT = [5 + i % 40 for i in range(40)]


def test_two_identical_prompts_in_one_batch():
    harness = make_harness()
    first, second = make_request(PROMPT, max_tokens=32), make_request(PROMPT, max_tokens=32)
    harness.run(first, second)
    right = continuation(PROMPT, 32)
    assert harness.output(first) == harness.output(second) == right
    computed = harness.loop.counters.computed_prompt_tokens
    assert computed == len(PROMPT) + 1, (
        "the prefix once, and the second's last token for its logits"
    )


@pytest.mark.parametrize("overlap", [False, True])
def test_one_short_prompt_chunk_4_and_200_tokens(overlap):
    harness = make_harness(pages=300, chunk_tokens=4, overlap=overlap)
    request = make_request([7, 8, 9, 10, 11], max_tokens=200, ignore_eos=True)
    harness.run(request)
    assert harness.output(request) == continuation(request.prompt, 200, ignore_eos=True)
    assert harness.loop.scheduler.memory.tree.cached == 5 + 200 - 1


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("max_tokens", [0, 1, 5])
def test_nothing_is_launched_past_max_tokens(overlap, max_tokens):
    harness = make_harness(overlap=overlap)
    harness.run(make_request(PROMPT, max_tokens=max_tokens, ignore_eos=True))
    assert harness.model.tokens == len(PROMPT) + max(0, max_tokens - 1)


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 32, 33])
def test_the_same_prompt_twice(length):
    harness = make_harness(chunk_tokens=16, overlap=False)
    prompt = PROMPT[:length]
    cold, warm = make_request(prompt), make_request(prompt)
    harness.run(cold)
    written = harness.model.written
    assert written == length + len(harness.output(cold)) - 1
    harness.run(warm)
    assert harness.model.written == 2 * written - length, "the prompt's pages are the tree's"
    assert harness.output(warm) == harness.output(cold) == continuation(prompt, 8)
    assert harness.updates[warm][-1].usage.cached_tokens == length - 1
    assert harness.updates[cold][-1].usage.cached_tokens == 0


@pytest.mark.parametrize("shared", [20, 40])
def test_a_match_in_the_batch_that_computes_it(shared):
    harness = make_harness(chunk_tokens=64, max_batch_tokens=128)
    requests = [make_request([*PROMPT[:shared], tail, 3]) for tail in (1, 2)]
    harness.run(*requests)
    for request in requests:
        assert harness.output(request) == continuation(request.prompt, 8)
    assert harness.loop.counters.computed_prompt_tokens == shared + 2 * 2


@pytest.mark.parametrize("steps", range(9))
@pytest.mark.parametrize("overlap", [False, True])
def test_abort_at_every_step(steps, overlap):
    """Queued, between chunks, before and after a result, decoding: one failure, exact pages."""
    harness = make_harness(chunk_tokens=16, max_batch_tokens=32, overlap=overlap)
    victim = make_request(PROMPT + PROMPT[::-1], max_tokens=50, ignore_eos=True)
    neighbour = make_request([9, 9, 9], max_tokens=60, ignore_eos=True)
    harness.loop.submit([victim, neighbour])
    for _ in range(steps):
        harness.step()
    harness.loop.abort([victim])
    harness.loop.abort([victim])
    harness.run()
    assert [failure.code for failure in harness.failures[victim]] == ["aborted"]
    assert harness.output(neighbour) == continuation([9, 9, 9], 60, ignore_eos=True)
    again = make_request(victim.prompt, max_tokens=50, ignore_eos=True)
    harness.run(again)
    assert harness.output(again) == continuation(again.prompt, 50, ignore_eos=True)


def test_abort_on_a_delaying_stream():
    harness = make_harness(chunk_tokens=16, overlap=True, stream=DelayingStream(2))
    for steps in range(8):
        victim = make_request([steps, *PROMPT], max_tokens=50)
        harness.loop.submit([victim])
        for _ in range(steps):
            harness.step()
        harness.loop.abort([victim])
        harness.run()
        harness.check_idle()


def test_a_request_is_stopped_by_the_limit_before_it_outgrows_the_pool():
    """Pool 64 pages, prompt 40: the service clamps 100 tokens to what the limit leaves."""
    harness = make_harness(pages=64)
    assert harness.loop.limits.max_context == 63
    request = make_request(PROMPT, max_tokens=23, ignore_eos=True)
    harness.run(request)
    assert harness.updates[request][-1].finish.reason == "length"
    assert len(harness.output(request)) == 23
    with pytest.raises(AssertionError, match="clamps"):
        harness.loop.submit([make_request(PROMPT, max_tokens=24)])


@pytest.mark.parametrize("overlap", [False, True])
def test_logprobs_keep_step_with_ids_through_retraction(overlap):
    def ask(harness):
        requests = [
            make_request(
                [i, *PROMPT[:20]], max_tokens=30, ignore_eos=True, top_logprobs=2, logprob_start=0
            )
            for i in range(1, 5)
        ]
        harness.run(*requests)
        return [
            [
                (lp.token, lp.logprob, lp.top)
                for update in harness.updates[request]
                for lp in (*update.prompt_logprobs, *update.logprobs)
            ]
            for request in requests
        ]

    tight = make_harness(pages=90, max_context=60, overlap=overlap, chunk_tokens=8)
    roomy = make_harness(pages=900, overlap=overlap)
    contended = ask(tight)
    assert tight.loop.scheduler.retractions > 0
    assert contended == ask(roomy)
    assert all(len(entries) == 21 + 30 for entries in contended)


def test_cold_request_among_endless_hot_ones():
    """At most `overtake_bound` later arrivals are admitted before it."""
    harness = make_harness(max_running=2, max_batch_tokens=64, overtake_bound=7)
    hot = PROMPT[:30]
    harness.run(make_request([*hot, 1]))
    requests = [make_request([*hot, 2 + i], max_tokens=4, ignore_eos=True) for i in range(4)]
    cold = make_request([40, 41, 42] * 5, max_tokens=4, ignore_eos=True)
    harness.loop.submit([*requests, cold])
    later = 0
    while not harness.ended(cold):
        hotter = make_request([*hot, 10 + later % 30, later // 30], max_tokens=4, ignore_eos=True)
        harness.loop.submit([hotter])
        later += 1
        harness.step()
        assert cold.overtaken <= 7
        assert later < 500
    assert cold.overtaken == 7, "hot requests did overtake: the bound is what ended it"
    harness.run()


def test_one_that_does_not_fit_lets_smaller_ones_pass():
    harness = make_harness(pages=100, max_context=90, overtake_bound=64)
    running = make_request(PROMPT[:30], max_tokens=40, ignore_eos=True)
    harness.loop.submit([running])
    harness.step()
    large = make_request([50] * 80, max_tokens=4)
    small = make_request([49, 48], max_tokens=2, ignore_eos=True)
    harness.loop.submit([large, small])
    while not harness.ended(small):
        harness.step()
    assert not harness.ended(running)
    assert large in harness.loop.scheduler.waiting
    harness.run()
    assert harness.output(large) == continuation(large.prompt, 4)


def test_salts_do_not_share():
    harness = make_harness()
    for salt, cached in (("a", 0), ("b", 0), (None, 0), ("a", 39), ("None", 0)):
        request = make_request(PROMPT, salt=salt)
        harness.run(request)
        assert harness.updates[request][-1].usage.cached_tokens == cached


@pytest.mark.parametrize("overlap", [False, True])
def test_a_failing_forward_tells_every_request(overlap):
    harness = make_harness(overlap=overlap)
    fatal = []
    harness.loop._on_fatal = fatal.append
    requests = [make_request(PROMPT, max_tokens=50, ignore_eos=True) for _ in range(3)]

    def broken(inputs):
        raise RuntimeError("the device is on fire")

    harness.loop.submit(requests)
    harness.step()
    harness.model.forward = broken
    harness.loop.start()
    harness.loop._thread.join(10)
    assert [str(error) for error in fatal] == ["the device is on fire"]
    for request in requests:
        (failure,) = harness.failures[request]
        assert failure.code == "internal"
        assert "on fire" in failure.message
