"""What Prometheus scrapes: read back by its own parser, and equal to what the runtime said."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from branchline.gateway.page import data_routes
from branchline.gateway.traffic import Traffic

from .watched import BOUNDS, Watched

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@pytest.fixture
def source() -> Watched:
    watched = Watched()
    watched.looks = 3
    return watched


@pytest.fixture
def client(source) -> Iterator[TestClient]:
    traffic = Traffic()
    app = FastAPI()
    app.include_router(data_routes(source, traffic))

    @app.get("/broken/{number}")
    async def broken(number: int) -> None:
        raise RuntimeError("boom")

    @app.get("/stream")
    async def stream() -> StreamingResponse:
        async def events() -> AsyncIterator[str]:
            yield f"data: {open_streams(traffic)}\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    app.add_middleware(traffic.watch)
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


def open_streams(traffic: Traffic) -> float | None:
    return traffic.registry.get_sample_value("branchline_http_open_streams")


def scrape(client: TestClient) -> Samples:
    answer = client.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def of(samples: Samples, name: str, **labels: str) -> float:
    return samples[f"branchline_{name}", tuple(sorted(labels.items()))]


def test_every_number_is_the_runtimes(client) -> None:
    samples = scrape(client)
    expected = {
        "up": 1,
        "uptime_seconds": 103,
        "requests_good_total": 27,
        "retractions_total": 4,
        "prompt_tokens_total": 12_000,
        "prompt_tokens_cached_total": 9_000,
        "prompt_tokens_computed_total": 3_000,
        "prompt_tokens_recalled_total": 7,
        "generated_tokens_total": 750,
        "generated_tokens_forced_total": 180,
        "generated_tokens_per_second": 250,
        "evicted_pages_total": 5,
        "steps_total": 150,
    }
    assert {name: of(samples, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("name", "label", "expected"),
    [
        ("requests", "state", {"running": 20, "waiting": 2}),
        ("requests_ended_total", "outcome", {"finished": 30, "aborted": 3, "timed_out": 1}),
        ("target_seconds", "of", {"ttft": 0.5, "tpot": 0.05}),
        ("step_seconds_total", "part", {"plan": 0.5, "wait": 1.5}),
        ("attention_positions_total", "what", {"attended": 900, "read": 300}),
        ("model_info", "name", {"toy": 1}),
    ],
)
def test_numbers_by_label(client, name, label, expected) -> None:
    samples = scrape(client)
    found = {
        labels: value
        for (sample, labels), value in samples.items()
        if sample == f"branchline_{name}"
    }
    assert found == {((label, of),): value for of, value in expected.items()}


def test_the_pages_add_up(client) -> None:
    samples = scrape(client)
    states = ("free", "cached_idle", "cached_in_use", "private")
    assert sum(of(samples, "pages", state=state) for state in states) == 10_000


def test_histograms_are_cumulated(client) -> None:
    samples = scrape(client)
    name = "time_to_first_token_seconds"
    below = {str(bound): 0 if bound < 0.1 else 30 for bound in BOUNDS} | {"+Inf": 30}
    assert {bound: of(samples, f"{name}_bucket", le=bound) for bound in below} == below
    assert of(samples, f"{name}_count") == 30
    assert of(samples, f"{name}_sum") == pytest.approx(2.4)
    # The last count of the runtime is of what lies beyond every bound.
    assert of(samples, "queue_seconds_bucket", le="1.0") == 0
    assert of(samples, "queue_seconds_count") == 3


def test_without_a_runtime_the_gateways_own_numbers_remain(client, source) -> None:
    scrape(client)
    source.away = "gone"
    samples = scrape(client)
    assert of(samples, "up") == 0
    assert ("branchline_steps_total", ()) not in samples
    assert of(samples, "http_requests_total", method="GET", route="/metrics", code="200") == 1


def test_requests_are_counted_by_route_not_by_path(client) -> None:
    for path in ("/broken/1", "/broken/2", "/nowhere", "/elsewhere"):
        client.get(path)
    client.request("BREW", "/nowhere")
    samples = scrape(client)
    broken = {"method": "GET", "route": "/broken/{number}"}
    assert of(samples, "http_requests_total", **broken, code="500") == 2
    assert of(samples, "http_requests_total", method="GET", route="none", code="404") == 2
    assert of(samples, "http_requests_total", method="other", route="none", code="404") == 1
    assert of(samples, "http_request_seconds_count", route="/broken/{number}") == 2
    assert of(samples, "http_open_requests") == 1  # this one


def test_streams_are_counted_while_they_are_open(client) -> None:
    assert client.get("/stream").text == "data: 1.0\n\n"
    assert of(scrape(client), "http_open_streams") == 0
