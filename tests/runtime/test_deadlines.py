"""Timeouts: who waits or runs for too long ends with a clear failure, and its pages come back."""

from __future__ import annotations

import time

import pytest

from branchline.protocol import Generate, Score
from branchline.runtime.deadlines import Deadlines, check_timeout

from .stub import make_harness, make_request
from .whole import Whole, ask


def timed(timeout: float | None, prompt: list[int], **params):
    request = make_request(prompt, **params)
    request.timeout = timeout
    return request


def test_whose_time_is_over_comes_out_in_order_and_once():
    now = 0
    deadlines = Deadlines(lambda: now)
    first, second, never, ended = (timed(t, [1]) for t in (2.0, 5.0, None, 1.0))
    for request in (second, first, never, ended):
        request.arrived = 10.0
        deadlines.add(request)
    deadlines.forget(ended)
    assert list(deadlines.due()) == []
    now = int(12e9)
    assert list(deadlines.due()) == [first]
    now = int(1000e9)
    assert list(deadlines.due()) == [second]
    assert list(deadlines.due()) == []


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf")])
def test_a_timeout_is_a_number_of_seconds(timeout):
    with pytest.raises(ValueError, match="must be a number of seconds above 0"):
        check_timeout(timeout)


def test_a_running_one_ends_and_its_neighbour_does_not_notice():
    harness = make_harness()
    slow = timed(0.05, [1, 2, 3], max_tokens=900, ignore_eos=True)
    patient = timed(60.0, [1, 2, 4], max_tokens=5, ignore_eos=True)
    harness.loop.submit([slow, patient])
    while not harness.ended(slow):
        harness.step()
    (failure,) = harness.failures[slow]
    assert failure.code == "timeout"
    assert "its timeout of 0.05 seconds" in failure.message
    harness.run()
    assert len(harness.output(patient)) == 5
    counters = harness.loop.counters
    assert (counters.timed_out, counters.aborted, counters.finished) == (1, 0, 1)


def test_a_waiting_one_ends_without_having_run():
    harness = make_harness(max_running=1)
    runs = make_request([1], max_tokens=10, ignore_eos=True)
    waits = timed(0.01, [2], max_tokens=1)
    harness.loop.submit([runs, waits])
    harness.step()
    time.sleep(0.02)
    harness.step()
    assert harness.failures[waits][0].code == "timeout"
    harness.run()
    assert len(harness.output(runs)) == 10


def test_a_message_that_times_out_fails_once_for_all_its_requests():
    whole = Whole()
    generate = ask("r", "A", n=3, max_tokens=900, ignore_eos=True)
    whole.tell(Generate("r", generate.prompt, generate.params, timeout=0.02))
    whole.harness.step()
    time.sleep(0.03)
    whole.run()
    assert [failure.code for failure in whole.failures()] == ["timeout"]
    whole.tell(Score("s", (("program", "B"),), ("C", "D"), timeout=1e-9))
    whole.run()
    assert [failure.code for failure in whole.failures("s")] == ["timeout"]
    whole.tell(ask("r", "A"))
    whole.run()
    assert whole.updates()[-1].finish
