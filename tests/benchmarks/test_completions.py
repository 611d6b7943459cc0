"""The HTTP client against a server that answers byte by byte."""

from __future__ import annotations

import asyncio
import json

import pytest
from peers.completions import Completions, events

USAGE = {
    "prompt_tokens": 10,
    "completion_tokens": 2,
    "prompt_tokens_details": {"cached_tokens": 4},
}
EVENTS = [
    {"choices": [{"text": "one\n"}]},
    {"choices": [{"text": " zwölf"}]},
    {"choices": [], "usage": USAGE},
]
BODY = b"".join(b"data: %s\n\n" % json.dumps(event).encode() for event in EVENTS)
BODY += b": a comment\n\ndata: [DONE]\n\n"


@pytest.mark.parametrize("size", [1, 2, 7, len(BODY)])
def test_events_in_pieces(size):
    async def pieces():
        for at in range(0, len(BODY), size):
            yield BODY[at : at + size]

    async def collect():
        return [event async for event in events(pieces())]

    assert asyncio.run(collect()) == EVENTS


def ask(status, headers, body, max_tokens=2):
    """One completion from a server that answers so; the request's head and body come back too."""
    seen = []

    async def answer(reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length:")[1].split()[0])
        seen.append((head, json.loads(await reader.readexactly(length))))
        writer.write(f"HTTP/1.1 {status}\r\n{headers}\r\n".encode() + body)
        await writer.drain()
        writer.close()

    async def run():
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with server:
            client = Completions(server.sockets[0].getsockname()[1])
            return client, await client.complete("the prompt", max_tokens)

    client, text = asyncio.run(run())
    return client, text, seen[0]


def chunked(size):
    pieces = (BODY[at : at + size] for at in range(0, len(BODY), size))
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ("Transfer-Encoding: chunked\r\n", chunked(5)),
        ("Transfer-Encoding: chunked\r\n", chunked(1000)),
        ("Content-Type: text/event-stream\r\n", BODY),
    ],
)
def test_complete(headers, body):
    client, text, (head, request) = ask("200 OK", headers, body)
    assert text == "one\n zwölf"
    assert head.startswith(b"POST /v1/completions HTTP/1.1\r\n")
    assert request["prompt"] == "the prompt"
    assert request["max_tokens"] == 2
    assert (request["temperature"], request["ignore_eos"]) == (0, True)
    assert (client.prompt_tokens, client.cached_tokens) == (10, 4)
    assert client.timings.tokens == 2
    assert client.timings.first_token[0] > 0
    assert len(client.timings.per_token) == 1


def test_a_refusal_is_shown():
    with pytest.raises(RuntimeError, match=r"400 Bad Request.*too long"):
        ask("400 Bad Request", "Content-Type: text/plain\r\n", b"too long")


def test_other_work_than_asked_for_is_an_error():
    with pytest.raises(RuntimeError, match="2 tokens came where 3"):
        ask("200 OK", "Content-Type: text/event-stream\r\n", BODY, max_tokens=3)
