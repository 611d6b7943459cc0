"""What the runtime and the gateway count, in Prometheus' text format.

The runtime's numbers are fetched when they are asked for. A scrape never fails: while nobody
answers, `branchline_up` is 0 and the gateway's own numbers are still there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from prometheus_client.core import Metric

    from branchline.runtime_info import Histogram, RuntimeInfo

HISTOGRAMS = {
    "queue": ("queue_seconds", "From arrival until it was first computed."),
    "ttft": ("time_to_first_token_seconds", "From arrival to the first token."),
    "tpot": ("time_per_output_token_seconds", "Between two tokens, a request's mean."),
    "e2e": ("request_seconds", "From arrival to the last token."),
}


def render(info: RuntimeInfo | None, own: CollectorRegistry) -> bytes:
    """The page that Prometheus scrapes; `info` is None while no runtime answers."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(RuntimeCollector(info))
    return generate_latest(registry) + generate_latest(own)


class RuntimeCollector(Collector):
    """The metrics of one answer of the runtime."""

    def __init__(self, info: RuntimeInfo | None) -> None:
        self._info = info

    def collect(self) -> Iterator[Metric]:
        """Every metric of the runtime."""
        info = self._info
        yield _gauge("up", "Whether a runtime answers.", float(info is not None))
        if info is None:
            return
        model = InfoMetricFamily("branchline_model", "What is served.")
        model.add_metric([], {"name": info.model})
        yield model
        yield _gauge("uptime_seconds", "Since the runtime's start.", info.uptime)
        yield from _requests(info)
        yield from _tokens(info)
        yield from _memory(info)
        yield from _steps(info)
        for name, histogram in info.histograms.items():
            known = HISTOGRAMS.get(name, (f"{name}_seconds", "A time of requests."))
            yield _histogram(*known, histogram)


def _requests(info: RuntimeInfo) -> Iterator[Metric]:
    states = {"running": info.running, "waiting": info.waiting}
    yield _gauges("requests", "Requests now, by state.", "state", states)
    outcomes = {
        "finished": info.requests_finished,
        "aborted": info.requests_aborted,
        "timed_out": info.requests_timed_out,
    }
    yield _counters("requests_ended", "Requests that ended, by how.", "outcome", outcomes)
    good = "Finished requests that met the targets of branchline_target_seconds: goodput."
    yield _counter("requests_good", good, info.requests_good)
    targets = {"ttft": info.target_ttft, "tpot": info.target_tpot}
    yield _gauges("target_seconds", "What a good request meets; 0: no target.", "of", targets)
    yield _counter("retractions", "Running requests put back to waiting.", info.retractions)


def _tokens(info: RuntimeInfo) -> Iterator[Metric]:
    yield _counter("prompt_tokens", "Of finished requests.", info.prompt_tokens)
    cached = "Of branchline_prompt_tokens, found in the tree and not computed."
    yield _counter("prompt_tokens_cached", cached, info.cached_prompt_tokens)
    computed = "Computed, also of requests that have not finished, after a retraction again."
    yield _counter("prompt_tokens_computed", computed, info.computed_prompt_tokens)
    recalled = "Of the prompts: the model's own ids, recalled for an answer sent back as text."
    yield _counter("prompt_tokens_recalled", recalled, info.recalled_tokens)
    yield _counter("generated_tokens", "Tokens written.", info.generated_tokens)
    forced = "Of branchline_generated_tokens, taken from a grammar without being sampled."
    yield _counter("generated_tokens_forced", forced, info.forced_tokens)
    rate = "Tokens written per second, over the last seconds."
    yield _gauge("generated_tokens_per_second", rate, info.tokens_per_second)


def _memory(info: RuntimeInfo) -> Iterator[Metric]:
    pages = {
        "free": info.pages_free,
        "cached_idle": info.pages_cached - info.pages_protected,
        "cached_in_use": info.pages_protected,
        "private": info.pages_private,
    }
    yield _gauges("pages", "Pages, the memory of one token each, by state.", "state", pages)
    yield _counter("evicted_pages", "Pages taken from the tree.", info.evicted_pages)
    positions = {"attended": info.positions_attended, "read": info.positions_read}
    shared = "Positions that rows attended to, and those read for it: a shared one is read once."
    yield _counters("attention_positions", shared, "what", positions)


def _steps(info: RuntimeInfo) -> Iterator[Metric]:
    yield _counter("steps", "Steps of the loop.", info.steps)
    yield _counters("step_seconds", "The loop's time, by part.", "part", info.step_seconds)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"branchline_{name}", text, value=value)


def _gauges(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    return _labelled(GaugeMetricFamily(f"branchline_{name}", text, labels=[label]), values.items())


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"branchline_{name}", text, value=value)


def _counters(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    family = CounterMetricFamily(f"branchline_{name}", text, labels=[label])
    return _labelled(family, values.items())


def _labelled(
    family: GaugeMetricFamily | CounterMetricFamily, values: Iterable[tuple[str, float]]
) -> Metric:
    for label, value in values:
        family.add_metric([label], value)
    return family


def _histogram(name: str, text: str, histogram: Histogram) -> Metric:
    """Prometheus cumulates its buckets; the runtime does not."""
    buckets, below = [], 0
    bounds = [*map(str, histogram.bounds), "+Inf"]
    for bound, count in zip(bounds, histogram.counts, strict=True):
        below += count
        buckets.append((bound, below))
    return HistogramMetricFamily(
        f"branchline_{name}", text, buckets=buckets, sum_value=histogram.sum
    )
