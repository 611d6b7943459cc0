"""Timings, medians and tables."""

from __future__ import annotations

import pytest
from measure import Result, Stopwatch, Timings, median, percentile
from report import details, number, table


def result(**changes):
    fields = {
        "workload": "w",
        "seconds": 2.0,
        "requests": 3,
        "tokens": 30,
        "tokens_per_second": 15.0,
        "ttft_p50": 0.1,
        "ttft_p99": 0.2,
        "tpot_p50": 0.01,
        "tpot_p99": 0.02,
        "load_before": 0.0,
        "load_after": 1.0,
    }
    return Result(**(fields | changes))


def test_percentile():
    values = list(range(100, 0, -1))
    assert percentile(values, 0.5) == 51
    assert percentile(values, 0.99) == 100
    assert percentile([7.0], 0.99) == 7.0


def test_timings_of_a_score_have_no_time_per_token():
    timings = Timings()
    timings.add(0.5, 0.5, tokens=0)
    timings.add(0.1, 1.1, tokens=11)
    assert timings.per_token == [pytest.approx(0.1)]
    measured = Stopwatch().result("w", timings)
    assert (measured.requests, measured.tokens) == (2, 11)
    assert measured.tpot_p50 == pytest.approx(0.1)


def test_a_workload_of_scores_alone():
    timings = Timings()
    timings.add(0.5, 0.5, tokens=0)
    measured = Stopwatch().result("w", timings)
    assert measured.ttft_p99 == 0.5
    assert measured.tpot_p50 is None
    assert " – / – |" in details([measured])


def test_median_is_of_each_field():
    runs = [
        result(seconds=1.0, steps=4, step_seconds={"plan": 0.3, "wait": 1.0}),
        result(seconds=9.0, steps=6, step_seconds={"plan": 0.1, "wait": 3.0}),
        result(seconds=2.0, steps=5, step_seconds={"plan": 0.2, "wait": 2.0}),
    ]
    middle = median(runs)
    assert middle.seconds == 2.0
    assert middle.steps == 5
    assert middle.step_seconds == {"plan": 0.2, "wait": 2.0}
    assert middle.hit_rate is None
    assert middle.workload == "w"


def test_hit_rate():
    measured = result().with_prompts(total=200, saved=150, computed=60)
    assert measured.hit_rate == 0.75
    assert measured.computed_tokens == 60


def test_results_travel_as_json():
    measured = result(step_seconds={"plan": 0.12345678})
    assert measured.as_json()["step_seconds"] == {"plan": 0.123457}
    assert Result(**measured.as_json()).requests == 3


def test_table():
    text = table(["name", "n"], [["a", "1"], ["long one", "1,000"]])
    assert text.splitlines() == [
        "| name     |     n |",
        "|----------|------:|",
        "| a        |     1 |",
        "| long one | 1,000 |",
    ]
    assert number(1234.5678, 1) == "1,234.6"
    assert number(None) == "–"
