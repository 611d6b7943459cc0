"""Keys, sizes, wrong routes, broken bodies, and errors before and in a stream."""

from __future__ import annotations

import http.client
import json
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import openai
import pytest

from branchline.errors import (
    BranchlineError,
    InvalidRequest,
    RequestTimeout,
    RuntimeFailed,
    RuntimeOverloaded,
    RuntimeUnavailable,
)
from branchline.gateway.settings import Settings
from tests.gateway.http import send
from tests.gateway.scripted import Scripted, gateway, say

if TYPE_CHECKING:
    from collections.abc import Iterator

ASK = {"prompt": "x"}
KEYS = ("first-key", "second-key", "ключ")


@pytest.fixture(scope="module")
def guarded() -> Iterator[str]:
    with gateway(Scripted(), api_keys=KEYS, max_body_bytes=1000, model_names=("alias",)) as url:
        yield url


def test_every_key_opens(guarded: str) -> None:
    headers = {"Authorization": f"Bearer {KEYS[2]}".encode()}
    assert send(guarded, "/v1/models", headers=headers).status == 200
    for key in KEYS[:2]:
        with openai.OpenAI(base_url=guarded + "/v1", api_key=key, max_retries=0) as client:
            assert client.completions.create(model="toy", prompt="x").choices[0].text == "ok"


@pytest.mark.parametrize(
    "authorization",
    ["", "Bearer", "Bearer wrong", "Bearer first-key2", "first-key", "Basic first-key", "Bearer é"],
)
@pytest.mark.parametrize(
    "path",
    ["/v1/completions", "/generate", "/v1/models", "/info", "/metrics", "/live", "/openapi.json"],
)
def test_without_a_key_nothing_is_told(guarded: str, path: str, authorization: str) -> None:
    headers = {"Authorization": authorization} if authorization else {}
    reply = send(guarded, path, headers=headers)
    assert reply.status == 401
    assert reply.error["code"] == "invalid_api_key"
    assert reply.headers["www-authenticate"] == "Bearer"


def test_health_and_the_page_need_no_key(guarded: str) -> None:
    assert send(guarded, "/health").status == 200
    page = send(guarded, "/")
    assert page.status == 200
    assert page.headers["content-type"].startswith("text/html")


def test_a_body_may_not_be_too_large(guarded: str) -> None:
    headers = {"Authorization": "Bearer first-key"}
    reply = send(guarded, "/v1/completions", {"prompt": "x" * 1000}, headers=headers)
    assert reply.status == 413
    assert "1000 bytes" in reply.error["message"]
    # Nor if it does not say how large it will be.
    connection = http.client.HTTPConnection(urlsplit(guarded).netloc, timeout=10)
    parts = (b'"' + b"x" * 400 + b'",' for _ in range(10))
    connection.request("POST", "/v1/completions", parts, headers, encode_chunked=True)
    assert connection.getresponse().status == 413
    connection.close()
    assert send(guarded, "/v1/completions", ASK, headers=headers).status == 200


def test_other_names_of_the_model(guarded: str) -> None:
    headers = {"Authorization": "Bearer first-key"}
    models = send(guarded, "/v1/models", headers=headers).json["data"]
    assert [model["id"] for model in models] == ["toy", "alias"]
    assert send(guarded, "/v1/models/alias", headers=headers).json["object"] == "model"
    assert send(guarded, "/v1/models/a/b", headers=headers).error["code"] == "model_not_found"
    reply = send(guarded, "/v1/completions", {**ASK, "model": "alias"}, headers=headers)
    assert reply.json["model"] == "alias"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing", 404),
        ("POST", "/v1/embeddings", 404),
        ("GET", "/v1/completions", 405),
        ("DELETE", "/generate", 405),
        ("GET", "/flush_cache", 405),
    ],
)
def test_routes_that_are_not(url: str, method: str, path: str, status: int) -> None:
    reply = send(url, path, method=method)
    assert reply.status == status
    assert path in reply.error["message"]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/generate"])
@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"5",
        b'"text"',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"prompt": "x", "seed": ' + b"9" * 5000 + b"}",
        b'{"prompt": "\xff"}',
    ],
)
def test_bodies_that_are_none(url: str, path: str, raw: bytes) -> None:
    reply = send(url, path, raw=raw, method="POST")
    assert reply.status == 400
    assert reply.error["type"] == "invalid_request_error"


def test_a_form_is_told_to_be_json(url: str) -> None:
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    reply = send(url, "/v1/completions", ASK, headers=headers)
    assert reply.status == 400
    assert "Content-Type: application/json" in reply.error["message"]


ERRORS = [
    (InvalidRequest("stop=5: must be a text"), 400, "invalid_request_error", "stop"),
    (RequestTimeout("it took longer than 2 s"), 408, "timeout_error", None),
    (RuntimeOverloaded("too many"), 429, "rate_limit_error", None),
    (RuntimeUnavailable("it is gone"), 503, "server_error", None),
    (RuntimeFailed("boom"), 500, "server_error", None),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("error", "status", "kind", "param"), ERRORS)
def test_errors_of_the_runtime(
    backend: Scripted,
    url: str,
    error: BranchlineError,
    status: int,
    kind: str,
    param: str | None,
    stream: bool,
) -> None:
    backend.script = [[error]]
    for path, body in (
        ("/v1/completions", ASK),
        ("/v1/completions", {"prompt": ["x", "y"]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
        ("/generate", {"text": "x"}),
    ):
        reply = send(url, path, {**body, "stream": stream})
        assert reply.status == status
        assert reply.error["message"] == str(error)
        assert (reply.error["type"], reply.error["param"]) == (kind, param)
        assert ("retry-after" in reply.headers) == (status in {429, 503})


def test_an_error_in_a_stream(backend: Scripted, client: openai.OpenAI, url: str) -> None:
    error = RuntimeUnavailable("it is gone")
    backend.script = [[*say("a", "b")[:2], error]]
    *chunks, last = send(url, "/v1/completions", {**ASK, "stream": True}).events
    assert [chunk["choices"][0]["text"] for chunk in chunks] == ["a", "b"]
    assert last["error"]["message"] == "it is gone"  # and no [DONE]
    stream = client.completions.create(model="toy", prompt="x", stream=True)
    with pytest.raises(openai.APIError, match="it is gone"):
        list(stream)


def test_health_tells_why_not(backend: Scripted, url: str) -> None:
    assert send(url, "/health").status == 200
    backend.lost = "nobody is there"
    try:
        reply = send(url, "/health")
        assert reply.status == 503
        assert reply.error["message"] == "nobody is there"
    finally:
        backend.lost = None


def test_health_of_generating(backend: Scripted, url: str) -> None:
    assert send(url, "/health_generate").json["status"] == "ok"
    backend.script = [[RuntimeFailed("boom")]]
    assert send(url, "/health_generate").status == 500


def test_admin(url: str) -> None:
    assert send(url, "/flush_cache", method="POST").json == {"pages": 7}
    info = send(url, "/info").json
    assert info["model"]["name"] == "toy"
    assert info["runtime"]["uptime"] == 1.5


@pytest.mark.parametrize(
    "wrong",
    [{"api_keys": ("",)}, {"max_open": 0}, {"max_body_bytes": 0}, {"timeout": 0.0}],
)
def test_settings_have_rules(wrong: dict) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Settings(**wrong)


def test_the_longest_time_is_the_operators(url: str) -> None:
    backend = Scripted()
    with gateway(backend, timeout=5.0) as limited:
        for asked in (None, 2.0, 60.0):
            body = {**ASK, **({} if asked is None else {"timeout": asked})}
            assert send(limited, "/v1/completions", body).status == 200
    assert [one.timeout for one in backend.asked] == [5.0, 2.0, 5.0]


def test_json_is_ascii(backend: Scripted, url: str) -> None:
    """Half a surrogate pair, which no encoding can send, is told as JSON escapes it."""
    backend.script = [[InvalidRequest("no \ud800 here")]]
    reply = send(url, "/v1/completions", ASK)
    assert json.loads(reply.text)["error"]["message"] == "no \ud800 here"
