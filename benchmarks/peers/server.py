"""A peer's server: started once, stopped in its tracks while another engine is measured."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

START_SECONDS = 600.0  # vLLM compiles
END_SECONDS = 15.0
POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Setup:
    """How a server is started."""

    command: Sequence[str]
    port: int
    environment: Mapping[str, str] = field(default_factory=dict)


def free_port() -> int:
    """A TCP port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


class Server:
    """One process group with a server in it.

    Args:
        setup: how it is started.
        log: the file that gets what it says.

    Raises:
        RuntimeError: it ended, or does not answer in time.
    """

    def __init__(self, setup: Setup, log: Path) -> None:
        self.port = setup.port
        self._log = log
        with log.open("wb") as output:
            self._child = subprocess.Popen(
                setup.command,
                env=os.environ | setup.environment,
                cwd=log.parent,  # not ours: `python -m` would find our packages before its own
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # so that signals reach its workers too
            )
        try:
            self._await_health()
        except BaseException:
            self.end()
            raise

    def _await_health(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not self._healthy():
            if self._child.poll() is not None:
                raise RuntimeError(f"the server ended while it started; see {self._log}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"no answer in {START_SECONDS:g} s; see {self._log}")
            time.sleep(POLL_SECONDS)

    def _healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=10):
                return True
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self.port}"

    def pause(self) -> None:
        """Take the cores from it; memory and connections stay."""
        os.killpg(self._child.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        os.killpg(self._child.pid, signal.SIGCONT)

    def end(self) -> None:
        """End it, with all its workers."""
        if self._child.poll() is None:
            self.resume()
            self._child.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._child.wait(END_SECONDS)
        with suppress(ProcessLookupError):  # all gone, as it should be
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()
