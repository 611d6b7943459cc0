"""Chromium without a window, driven over its debugging pipe: JSON messages that end with a zero."""

from __future__ import annotations

import base64
import itertools
import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run")
KEYS = {"Enter": 13, "Escape": 27, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}


class Tab:
    """A page that is open: asked in JavaScript, used with keys and pointer."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self.errors: list[str] = []  # what went to the console as one, and what nobody caught
        self._out = to_browser
        self._in = from_browser
        self._ids = itertools.count(1)
        self._buffer = b""
        self._session: dict[str, str] = {}
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        attached = self._ask("Target.attachToTarget", targetId=target, flatten=True)
        self._session = {"sessionId": attached["sessionId"]}
        for domain in ("Page", "Runtime", "Log"):
            self._ask(f"{domain}.enable")

    def open(self, url: str) -> None:
        self._ask("Page.navigate", url=url)

    def leave(self) -> None:
        """Close the page, so that it does not look for a server that has gone."""
        self.open("about:blank")
        self.errors.clear()

    def close(self) -> None:
        self._session = {}
        self._ask("Browser.close")

    def resize(self, width: int, height: int, *, dark: bool = False) -> None:
        shape = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._ask("Emulation.setDeviceMetricsOverride", **shape)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._ask("Emulation.setEmulatedMedia", features=[scheme])

    def value(self, script: str) -> Any:
        """What an expression is, once it has settled."""
        settled = self._ask(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in settled, settled
        return settled["result"].get("value")

    def wait(self, condition: str, seconds: float = 10.0) -> Any:
        """The first value of an expression that counts as true."""
        end = time.monotonic() + seconds
        while not (value := self.value(condition)):
            if time.monotonic() > end:
                shown = self.value("document.body.innerText")
                pytest.fail(f"not within {seconds:g} s: {condition}\n{self.errors}\n{shown}")
            time.sleep(0.05)
        return value

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            code = {"windowsVirtualKeyCode": KEYS[key]}
            self._ask("Input.dispatchKeyEvent", type=kind, key=key, code=key, **code)

    def point(self, x: float, y: float, *, click: bool = False) -> None:
        for kind in ("mouseMoved", "mousePressed", "mouseReleased")[: 3 if click else 1]:
            button = {"button": "left", "clickCount": 1} if click else {}
            self._ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, **button)

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self._ask("Page.captureScreenshot")["data"]))

    def _ask(self, method: str, **params: Any) -> Any:
        number = next(self._ids)
        message = {"id": number, "method": method, "params": params, **self._session}
        frame = json.dumps(message).encode() + b"\0"
        while frame:
            frame = frame[os.write(self._out, frame) :]
        while True:
            answer = self._read()
            if answer.get("id") == number:
                assert "error" not in answer, (method, answer)
                return answer["result"]
            self._notice(answer)

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            chunk = os.read(self._in, 1 << 20)
            assert chunk, "the browser has ended"
            self._buffer += chunk
        message, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(message)

    def _notice(self, event: dict[str, Any]) -> None:
        params = event.get("params", {})
        match event["method"]:
            case "Runtime.exceptionThrown":
                self.errors.append(json.dumps(params["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if params["type"] in {"error", "assert", "warning"}:
                self.errors.append(json.dumps(params["args"]))
            case "Log.entryAdded" if params["entry"]["level"] in {"error", "warning"}:
                self.errors.append(json.dumps(params["entry"]))


@contextmanager
def browsing(program: str, profile: Path) -> Iterator[Tab]:
    """A tab of a browser of its own, which ends with the block."""
    their_in, to_browser = os.pipe()
    from_browser, their_out = os.pipe()
    # The browser reads descriptor 3 and writes 4; copies are first put out of these numbers' way.
    moved = (
        "import os, sys; from fcntl import F_DUPFD, fcntl; "
        f"ends = [fcntl(fd, F_DUPFD, 10) for fd in ({their_in}, {their_out})]; "
        "os.dup2(ends[0], 3); os.dup2(ends[1], 4); os.execv(sys.argv[1], sys.argv[1:])"
    )
    command = [program, *FLAGS, "--remote-debugging-pipe", f"--user-data-dir={profile}"]
    log = profile.with_suffix(".log").open("wb")
    process = subprocess.Popen(
        [sys.executable, "-c", moved, *command],
        pass_fds=(their_in, their_out),
        stdout=log,
        stderr=log,
    )
    os.close(their_in)
    os.close(their_out)
    try:
        tab = Tab(to_browser, from_browser)
        yield tab
        tab.close()
    finally:
        log.close()
        os.close(to_browser)
        os.close(from_browser)
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
