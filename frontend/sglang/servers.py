"""Servers as SGLang's notebooks start them: a command line, an address, a process.

Here each is a runtime of its own that `RuntimeEndpoint` finds by the address; no one speaks HTTP.
"""

from __future__ import annotations

import itertools
import shlex
from typing import Any

from branchline.errors import InvalidRequest, RuntimeUnavailable
from branchline.sglang.endpoint import serve_at, served_at
from branchline.sglang.runtimes import Runtime

FIRST_PORT = 30000  # SGLang's

_ports = itertools.count(FIRST_PORT)


class Server:
    """A runtime that was started by a command line."""

    def __init__(self, runtime: Runtime, url: str) -> None:
        self._runtime = runtime
        self._url = url
        self.pid = runtime.pid
        serve_at(url, runtime.endpoint.runtime)

    def terminate(self) -> None:
        """End it. A second call does nothing."""
        serve_at(self._url, None)
        self._runtime.shutdown()

    kill = terminate


def launch_server_cmd(
    command: str, host: str = "0.0.0.0", port: int | None = None
) -> tuple[Server, int]:
    """Start a runtime from SGLang's command line of a server; it, and the port of its address.

    Raises:
        InvalidRequest: the command names no model, or asks for what the runtime does not have.
    """
    arguments = _arguments(command)
    if "model_path" not in arguments:
        raise InvalidRequest(f"{command!r}: names no model; it needs --model-path")
    port = port or arguments.get("port") or next(_ports)
    return Server(Runtime(**arguments), f"http://{host}:{port}"), port


def wait_for_server(base_url: str, timeout: float | None = None) -> None:
    """Nothing, if there is a server: one that has been launched answers already.

    Raises:
        RuntimeUnavailable: there is none, and no runtime of `branchline run` either.
    """
    try:
        served_at(base_url)
    except InvalidRequest as error:
        raise RuntimeUnavailable(f"no server was launched at {base_url}: {error}") from None


def terminate_process(process: Server) -> None:
    """End a server. A second call does nothing."""
    process.terminate()


def _arguments(command: str) -> dict[str, Any]:
    """The options of a command line by name; a number is a number, one without a value is True."""
    words = shlex.split(command.replace("\\\n", " "))
    found: dict[str, Any] = {}
    for index, word in enumerate(words):
        if not word.startswith("--"):
            continue
        name, given, value = word[2:].partition("=")
        if not given:
            following = words[index + 1] if index + 1 < len(words) else "--"
            value = "" if following.startswith("--") else following
        name = {"model": "model_path", "tp": "tp_size"}.get(name, name.replace("-", "_"))
        found[name] = _value(value) if value else True
    return found


def _value(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
