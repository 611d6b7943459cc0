"""Grammars in the loop: jumps, masks and ends on the model that cannot be fooled."""

from __future__ import annotations

import random

import pytest

from .cuda.devices import device_harness
from .grammars import Place, TokenGrammar, constrained, make_constrained
from .stub import EOS, DelayingStream, continuation, make_harness, make_request

PROMPT = [5, 9, 2, 30]
ANY = set(range(1, 20))
FORM = TokenGrammar.text(*[40, 41, 42], ANY, *[43, 44, 45, 46], ANY, ANY, *[47, 48, 49])


def finish_of(harness, request):
    return harness.updates[request][-1].finish


# -------------------------------------------------------------------------------- what comes out


@pytest.mark.parametrize("make", [make_harness, device_harness])
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("jump_forward", [False, True])
def test_jumps_change_the_steps_and_nothing_else(make, overlap, jump_forward):
    harness = make(overlap=overlap)
    request = make_constrained(FORM, PROMPT, max_tokens=50, jump_forward=jump_forward)
    harness.run(request)
    right = constrained(FORM, PROMPT, max_tokens=50)
    assert harness.output(request) == right
    assert right[-1] == EOS
    usage = harness.updates[request][-1].usage
    assert usage.forced_tokens == (11 if jump_forward else 0)
    assert usage.completion_tokens == len(right) == 14
    assert harness.loop.counters.forced_tokens == usage.forced_tokens
    assert harness.loop.counters.generated_tokens == 14
    # One step for each draw; with overlap one more for each jump, and one run in vain at the end.
    steps = harness.loop.counters.steps
    assert steps <= 3 + 2 * overlap if jump_forward else steps >= 14


@pytest.mark.parametrize("chunk", [1, 3, 16])
@pytest.mark.parametrize("overlap", [False, True])
def test_neighbours_do_not_change(overlap, chunk):
    """Forced text extends in chunks beside decodes and prompts."""
    harness = make_harness(overlap=overlap, chunk_tokens=chunk, max_batch_tokens=32)
    rng = random.Random(chunk)
    free = [make_request([1 + i, 7, 7], max_tokens=30, ignore_eos=True) for i in range(4)]
    grammars = [TokenGrammar.random(rng) for _ in range(12)]
    bound = [make_constrained(g, [i % 3, 8], max_tokens=40) for i, g in enumerate(grammars)]
    harness.run(*free, *bound)
    for request in free:
        assert harness.output(request) == continuation(request.prompt, 30, ignore_eos=True)
    for request, grammar in zip(bound, grammars, strict=True):
        assert harness.output(request) == constrained(grammar, request.prompt, max_tokens=40)


def test_ways_of_writing_the_same_text_do_not_change_the_tokens():
    """Where the mask would allow several tokens for one text, the canonical one is taken."""
    place = Place({20: 1, 21: 1}, canonical=21)
    grammar = TokenGrammar([place, Place({3: 2, 4: 2}), Place(accepting=True)])
    outputs = []
    for jump_forward in (True, False):
        harness = make_harness()
        request = make_constrained(grammar, PROMPT, jump_forward=jump_forward)
        harness.run(request)
        outputs.append(harness.output(request))
    assert outputs[0] == outputs[1] == constrained(grammar, PROMPT)
    assert outputs[0][0] == 21


@pytest.mark.parametrize("overlap", [False, True])
def test_a_long_prompt_does_not_stall_a_jump(overlap):
    """Its chunk would take all that the decodes leave of a step."""
    harness = make_harness(overlap=overlap, max_batch_tokens=20, chunk_tokens=16)
    first = make_request([7] * 500, max_tokens=1)
    grammar = TokenGrammar.text(*([ANY] * 8), *([40] * 6), ANY, *([41] * 6), ANY)
    form = make_constrained(grammar, [5, 9], max_tokens=50)
    decodes = [make_request([i], max_tokens=200, ignore_eos=True) for i in range(1, 4)]
    harness.loop.submit([first, form, *decodes])
    while not harness.ended(form):
        harness.step()
    assert harness.loop.counters.steps < 20, "6 tokens a step or two, not one by one"
    assert not harness.ended(first)
    assert all(request.output_len for request in decodes)
    assert harness.output(form) == constrained(grammar, [5, 9], max_tokens=50)
    harness.run()


@pytest.mark.parametrize("overlap", [False, True])
def test_a_jump_over_what_another_has_left_in_the_tree(overlap):
    """Its own pages come before: it computes what it could have matched, and commits no twin."""
    harness = make_harness(overlap=overlap)
    twins = [make_constrained(FORM, PROMPT, max_tokens=50) for _ in range(6)]
    for twin in twins:
        harness.loop.submit([twin])
        harness.step()
    harness.run()
    right = constrained(FORM, PROMPT, max_tokens=50)
    assert all(harness.output(twin) == right for twin in twins)
    assert harness.loop.scheduler.memory.tree.cached == len(PROMPT) + len(right) - 5


# -------------------------------------------------------------------------------- the beginning


def test_what_is_forced_from_the_start_is_part_of_the_first_extend():
    harness = make_harness(overlap=False)
    request = make_constrained(FORM, PROMPT, max_tokens=50)
    harness.loop.submit([request])
    harness.step()
    assert harness.model.tokens == len(PROMPT) + 3
    assert harness.output(request)[:3] == [40, 41, 42]
    harness.run()
    usage = harness.updates[request][-1].usage
    assert (usage.prompt_tokens, usage.cached_tokens) == (len(PROMPT), 0)


def test_what_is_forced_from_the_start_is_shared():
    harness = make_harness(overlap=False)
    first, *rest = [make_constrained(FORM, PROMPT, max_tokens=50) for _ in range(8)]
    harness.loop.submit([first, *rest])
    harness.step()
    assert harness.model.tokens == len(PROMPT) + 3 + len(rest), "once, and the last token of each"
    harness.run()


@pytest.mark.parametrize("stream", [False, True])
def test_a_grammar_with_one_sentence_needs_no_step(stream):
    harness = make_harness()
    request = make_constrained(TokenGrammar.text(4, 5, 6), PROMPT, stream=stream)
    harness.run(request)
    (update,) = harness.updates[request]
    assert (update.ids, update.text) == ((4, 5, 6, EOS), "4 5 6 ")
    assert (update.finish.reason, update.finish.matched) == ("stop", EOS)
    assert update.usage.forced_tokens == update.usage.completion_tokens == 4
    assert harness.loop.counters.steps == 0


@pytest.mark.parametrize("max_tokens", range(1, 15))
def test_max_tokens_cuts_what_is_forced(max_tokens):
    harness = make_harness()
    request = make_constrained(FORM, PROMPT, max_tokens=max_tokens)
    harness.run(request)
    right = constrained(FORM, PROMPT, max_tokens=max_tokens)
    assert harness.output(request) == right
    assert finish_of(harness, request).reason == ("stop" if max_tokens == 14 else "length")
    assert harness.updates[request][-1].usage.completion_tokens == max_tokens


def test_max_tokens_0_computes_the_prompt():
    harness = make_harness()
    request = make_constrained(FORM, PROMPT, max_tokens=0)
    harness.run(request)
    assert harness.output(request) == []
    assert harness.model.tokens == len(PROMPT)


# -------------------------------------------------------------------------------- the end


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("pair", [(40, 41), (43, 44), (45, 46), (48, 49)])
def test_a_stop_string_inside_forced_text_ends_the_output(overlap, pair):
    harness = make_harness(overlap=overlap)
    request = make_constrained(FORM, PROMPT, max_tokens=50, stop_pairs=frozenset({pair}))
    harness.run(request)
    right = constrained(FORM, PROMPT, max_tokens=50)
    right = right[: right.index(pair[1]) + 1]
    assert harness.output(request) == right
    assert finish_of(harness, request).matched == "pair"
    usage = harness.updates[request][-1].usage
    assert usage.completion_tokens == len(right)
    assert usage.forced_tokens == sum(token >= 40 for token in right)


@pytest.mark.parametrize("stop", [41, 44, 49])
def test_a_stop_id_inside_forced_text_ends_the_output(stop):
    harness = make_harness()
    request = make_constrained(FORM, PROMPT, max_tokens=50, stop_token_ids=(stop,))
    harness.run(request)
    right = constrained(FORM, PROMPT, max_tokens=50)
    assert harness.output(request) == right[: right.index(stop) + 1]
    assert finish_of(harness, request).matched == stop


def test_eos_is_allowed_exactly_where_the_grammar_accepts():
    """A place that accepts and goes on: a model that wants EOS ends there, and nowhere else."""
    loop = TokenGrammar([Place({7: 1}), Place({7: 0}, accepting=True)])
    for start in range(1, 50):
        harness = make_harness()
        request = make_constrained(loop, [start], max_tokens=60, ignore_eos=False)
        harness.run(request)
        output = harness.output(request)
        assert output == constrained(loop, [start], max_tokens=60)
        assert EOS not in output or output.index(EOS) % 2 == 1


@pytest.mark.parametrize("jump_forward", [False, True])
def test_a_complete_grammar_ends_an_output_that_should_be_longer_and_says_so(jump_forward):
    harness = make_harness()
    given = {"max_tokens": 50, "min_tokens": 20, "jump_forward": jump_forward}
    request = make_constrained(FORM, PROMPT, **given)
    other = make_constrained(FORM, PROMPT, max_tokens=50, ignore_eos=True)
    free = make_constrained(FORM, PROMPT, max_tokens=50)
    harness.run(request, other, free)
    for asked in (request, other, free):
        assert harness.output(asked) == constrained(FORM, PROMPT, max_tokens=50)
    assert "min_tokens=20" in finish_of(harness, request).note
    assert "ignore_eos" in finish_of(harness, other).note
    assert finish_of(harness, free).note == ""


@pytest.mark.parametrize("wish", [{"min_tokens": 9}, {"ignore_eos": True}])
def test_where_a_grammar_can_go_on_an_early_end_is_masked(wish):
    """The lowest allowed token would be EOS: without the wish it ends at once."""
    grammar = TokenGrammar([Place({7: 0, 8: 0}, accepting=True)])
    harness = make_harness()
    request = make_constrained(grammar, PROMPT, max_tokens=12, **wish)
    free = make_constrained(grammar, PROMPT, max_tokens=12)
    harness.run(request, free)
    assert harness.output(free) == [EOS]
    output = harness.output(request)
    assert output == constrained(grammar, PROMPT, max_tokens=12, **wish)
    assert len(output) == (10 if "min_tokens" in wish else 12)
    assert finish_of(harness, request).note == ""


def test_a_token_that_the_bias_bans_comes_where_nothing_else_can():
    harness = make_harness()
    bias = {40: -100.0, 43: -100.0}
    request = make_constrained(FORM, PROMPT, max_tokens=50, logit_bias=bias)
    harness.run(request)
    assert harness.output(request) == constrained(FORM, PROMPT, max_tokens=50)
    assert "logit_bias[40]=-100" in finish_of(harness, request).note


def test_logprobs_are_one_for_each_token_with_the_same_tokens():
    harness = make_harness()
    request = make_constrained(FORM, PROMPT, max_tokens=50, top_logprobs=2, logprob_start=0)
    harness.run(request)
    assert harness.output(request) == constrained(FORM, PROMPT, max_tokens=50)
    logprobs = [entry for update in harness.updates[request] for entry in update.logprobs]
    assert [entry.token for entry in logprobs] == harness.output(request)
    assert all(len(entry.top) == 2 for entry in logprobs)
    scored = [p.token for update in harness.updates[request] for p in update.prompt_logprobs]
    assert scored == PROMPT


# -------------------------------------------------------------------------------- in between


@pytest.mark.parametrize("overlap", [False, True])
def test_abort_after_each_step(overlap):
    for steps in range(12):
        harness = make_harness(overlap=overlap, chunk_tokens=2, stream=DelayingStream(steps))
        request = make_constrained(FORM, PROMPT, max_tokens=50)
        neighbour = make_request([3, 3], max_tokens=20, ignore_eos=True)
        harness.loop.submit([request, neighbour])
        for _ in range(steps):
            harness.step()
        harness.loop.abort([request])
        harness.run()
        right = constrained(FORM, PROMPT, max_tokens=50)
        output = harness.output(request)
        assert output == right[: len(output)]
        assert bool(harness.failures.get(request)) == (len(output) < len(right))
        assert harness.output(neighbour) == continuation([3, 3], 20, ignore_eos=True)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("chunk", [2, 16])
def test_retraction_within_forced_text(overlap, chunk):
    harness = make_harness(
        pages=60, max_context=50, overlap=overlap, chunk_tokens=chunk, max_batch_tokens=24
    )
    grammar = TokenGrammar.text(*[ANY, *([40] * 5), ANY, *([41] * 8)] * 3)
    requests = [
        make_constrained(grammar, [1 + i, 2, 3, 4], max_tokens=44, ignore_eos=i % 2 == 0)
        for i in range(40)
    ]
    harness.run(*requests)
    assert harness.loop.scheduler.retractions > 0
    for request in requests:
        assert harness.output(request) == constrained(grammar, request.prompt, max_tokens=44)


class Stuck:
    """A matcher that has no token to offer after the first."""

    def __init__(self, matcher) -> None:
        self.matcher = matcher

    def __getattr__(self, name):
        return getattr(self.matcher, name)

    def fill_mask(self, mask) -> None:
        self.matcher.fill_mask(mask)
        if self.matcher.at:
            mask[:] = 0

    def copy(self):
        return Stuck(self.matcher.copy())


class StuckGrammar(TokenGrammar):
    def start(self):
        return Stuck(super().start())


@pytest.mark.parametrize("overlap", [False, True])
def test_a_grammar_that_cannot_go_on_ends_its_request_only(overlap):
    harness = make_harness(overlap=overlap)
    grammar = StuckGrammar([Place({7: 1, 8: 1}), Place({7: 2, 8: 2}), Place(accepting=True)])
    request = make_constrained(grammar, PROMPT)
    neighbour = make_request([3, 3], max_tokens=20, ignore_eos=True)
    harness.run(request, neighbour)
    (failure,) = harness.failures[request]
    assert failure.code == "invalid"
    assert "cannot go on after 1 tokens" in failure.message
    assert harness.output(neighbour) == continuation([3, 3], 20, ignore_eos=True)


def test_a_model_without_a_finite_logit_ends_its_request_only():
    harness = make_harness()
    forward = harness.model.forward
    harness.model.forward = lambda inputs: forward(inputs) * float("nan")
    request = make_constrained(FORM, PROMPT)
    harness.run(request)
    (failure,) = harness.failures[request]
    assert failure.code == "internal"
    assert "finite logit" in failure.message
