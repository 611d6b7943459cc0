"""Plain HTTP requests, for what no client library would send."""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)

    @property
    def error(self) -> dict[str, Any]:
        """The error, of which the shape is checked."""
        assert set(self.json) == {"error"}, self.text
        error = self.json["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["message"]
        assert error["type"]
        return error

    @property
    def events(self) -> list[Any]:
        """The data of each event, as JSON except for the mark of the end."""
        assert self.headers["content-type"].startswith("text/event-stream")
        parts = self.text.split("\n\n")
        assert parts.pop() == "", "every event ends with an empty line"
        data = [part.removeprefix("data: ") for part in parts]
        return [one if one == "[DONE]" else json.loads(one) for one in data]


def send(
    url: str,
    path: str,
    body: object = None,
    *,
    method: str | None = None,
    headers: dict[str, str | bytes] | None = None,
    raw: bytes | None = None,
) -> Reply:
    """Send one request on a connection of its own."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=20)
    data = raw if raw is not None else None if body is None else json.dumps(body).encode()
    given = {"Content-Type": "application/json"} if data is not None else {}
    try:
        chosen = method or ("GET" if data is None else "POST")
        connection.request(chosen, path, data, {**given, **(headers or {})})
        response = connection.getresponse()
        names = {name.lower(): value for name, value in response.getheaders()}
        return Reply(response.status, names, response.read().decode())
    finally:
        connection.close()
