"""Random bodies over HTTP: no 5xx, no hang, and the next good request is served."""

from __future__ import annotations

import http.client
import json
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from .bodies import bodies, broken_bodies

if TYPE_CHECKING:
    from .target import Target

HANG = 15.0  # seconds without an answer
PATHS = ("/v1/completions", "/v1/chat/completions", "/generate")
HEADERS = {"Content-Type": "application/json"}


def quick(examples: int) -> settings:
    return settings(
        max_examples=examples,
        deadline=None,
        phases=[Phase.generate],  # what fails is printed; to make it small takes long
        suppress_health_check=list(HealthCheck),
    )


def answered(fuzzed: Target, path: str, content: bytes) -> int:
    """The status of an answer, which is one of ours to the end."""
    connection = http.client.HTTPConnection(urlsplit(fuzzed.url).netloc, timeout=HANG)
    try:
        connection.request("POST", path, content, HEADERS)
        reply = connection.getresponse()
        text = reply.read().decode()
    finally:
        connection.close()
    assert reply.status < 500, f"{path} {content[:2000]!r}: {reply.status} {text}"
    if reply.status != 200:
        error = json.loads(text)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["message"]
    else:
        assert '"internal_error"' not in text, text  # in a stream, where the status is sent
    return reply.status


def check(fuzzed: Target, asked: list[tuple[str, bytes]]) -> None:
    for path, content in asked:
        answered(fuzzed, path, content)
    fuzzed.serves()


def check_bodies(fuzzed: Target, examples: int) -> None:
    """In batches of 5, each followed by a good request."""

    @quick(examples // 5)
    @given(st.lists(bodies() | bodies() | broken_bodies(), min_size=5, max_size=5))
    def run(asked: list[tuple[str, bytes]]) -> None:
        check(fuzzed, asked)

    run()


def check_schema(fuzzed: Target, path: str, examples: int) -> None:
    """What the application's own description allows, and what it does not."""
    schema = schemathesis.openapi.from_url(f"{fuzzed.url}/openapi.json")
    modes = (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE)
    cases = st.one_of(*(schema[path]["POST"].as_strategy(generation_mode=mode) for mode in modes))

    @quick(examples)
    @given(cases)
    def run(case: schemathesis.Case) -> None:
        content = case.body if isinstance(case.body, bytes) else json.dumps(case.body).encode()
        answered(fuzzed, path, content)

    run()
    fuzzed.serves()


def test_bodies(fuzzed: Target) -> None:
    check_bodies(fuzzed, 200)


@pytest.mark.parametrize("path", PATHS)
def test_what_the_schema_describes(fuzzed: Target, path: str) -> None:
    check_schema(fuzzed, path, 40)


@pytest.mark.slow
def test_7000_bodies(fuzzed: Target) -> None:
    check_bodies(fuzzed, 7000)


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS)
def test_1000_of_what_the_schema_describes(fuzzed: Target, path: str) -> None:
    check_schema(fuzzed, path, 1000)
