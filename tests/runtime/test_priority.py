"""Priority: strictly higher first; within a level as ever; who gives way when pages run out."""

from __future__ import annotations

from branchline.protocol import Score
from branchline.runtime.request import State

from .stub import continuation, make_harness, make_request
from .whole import Whole, ask


def prioritized(priority: int, prompt: list[int], **params):
    request = make_request(prompt, **params)
    request.priority = priority
    return request


def order_of_finish(harness, requests) -> list[int]:
    harness.run(*requests)
    return [requests.index(request) for request in harness.updates]


def test_higher_runs_first_whatever_is_cached_and_whoever_came_first():
    harness = make_harness(max_running=1)
    warm = [1, 2, 3, 4, 5, 6]
    harness.run(make_request(warm, max_tokens=1))
    harness.updates.clear()
    requests = [
        prioritized(priority, prompt, max_tokens=1)
        for priority, prompt in [(0, [*warm, 7]), (-3, [*warm, 8]), (5, [9, 9]), (5, [*warm, 9])]
    ]
    assert order_of_finish(harness, requests) == [3, 2, 0, 1]


def test_a_low_level_waits_for_as_long_as_a_higher_one_asks():
    """Its bound counts those of its own level: others do not overtake it, they are before it."""
    harness = make_harness(max_running=1, overtake_bound=2)
    low = prioritized(0, [9, 9], max_tokens=1)
    high = [prioritized(1, [1, i], max_tokens=1) for i in range(2, 20)]
    assert order_of_finish(harness, [low, *high]) == [*range(1, 19), 0]
    assert low.overtaken == 0


def test_one_that_does_not_fit_is_not_passed_by_a_lower_one():
    harness = make_harness(pages=41, max_context=40, max_running=4)
    runs = prioritized(1, [1] * 10, max_tokens=20)
    harness.loop.submit([runs])
    harness.step()
    large = prioritized(1, [2] * 30, max_tokens=2)
    small, smaller = prioritized(0, [3], max_tokens=1), prioritized(1, [4], max_tokens=1)
    harness.loop.submit([large, small, smaller])
    while large.state is State.WAITING:
        assert small.state is State.WAITING
        harness.step()
    assert smaller.state is not State.WAITING, "its own level may pass"
    harness.run()
    assert harness.ended(small)


def test_the_lowest_gives_way_when_pages_run_out():
    harness = make_harness(pages=41, max_context=40)
    low, high, late = (
        prioritized(priority, [token] * 4, max_tokens=24, ignore_eos=True)
        for priority, token in [(-1, 3), (2, 5), (0, 7)]
    )
    harness.run(low, high, late)
    assert harness.loop.scheduler.retractions > 0
    assert low.retracted
    assert not high.retracted
    assert harness.ended(high)
    for request in (low, high, late):
        assert harness.output(request) == continuation(request.prompt, 24, ignore_eos=True)


def test_a_message_says_it_for_all_its_requests():
    whole = Whole(max_running=1)
    first, scores, choices = (
        ask("first", "A", max_tokens=1),
        Score("s", (("program", "B"),), ("C", "D"), priority=1),
        ask("c", "E", max_tokens=1, n=2),
    )
    for message in (first, scores):
        whole.tell(message)
    whole.tell(type(choices)("c", choices.prompt, choices.params, priority=2))
    whole.run()
    said = [
        update.rid
        for _, message in whole.posted
        for update in getattr(message, "updates", [message])
        if getattr(update, "finish", True)
    ]
    assert said == ["c", "c", "s", "first"]
