"""`python -m branchline.gateway` as a process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from branchline.gateway import __main__ as command
from tests.gateway.http import send

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

COMMAND = (sys.executable, "-P", "-m", "branchline.gateway")


@contextmanager
def started(*flags: str, **environment: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process, and what it prints first."""
    process = subprocess.Popen(
        [*COMMAND, *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )
    with process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline()
        finally:
            process.kill()


def test_it_serves_until_it_is_told_to_end(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/none.sock"
    keys = {command.KEY_VARIABLE: "secret other"}
    with started("--connect", address, "--port=0", "--api-key=third", **keys) as (process, line):
        assert address in line
        url = line.split()[2]
        assert url.startswith("http://127.0.0.1:")
        assert send(url, "/v1/models").status == 401
        for key in ("secret", "other", "third"):
            headers = {"Authorization": f"Bearer {key}"}
            assert send(url, "/v1/models", headers=headers).status == 503
        assert "none.sock" in send(url, "/health").error["message"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0


@pytest.mark.parametrize(
    ("flags", "words"),
    [(["--timeout=0", "--port=0"], "timeout=0"), (["--host=256.1.1.1", "--port=0"], "gateway:")],
)
def test_what_cannot_be_is_told(
    flags: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(flags) == 1
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("host", "local"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False)],
)
def test_what_is_only_this_machine(host: str, local: bool) -> None:
    assert command._is_local(host) == local
