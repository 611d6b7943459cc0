"""A runtime process that belongs to this one: started, watched, ended."""

from __future__ import annotations

import asyncio
import atexit
import os
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING, Any

from branchline.client import Client
from branchline.paths import private_address, socket_path
from branchline.transport import ClientConfig, ZmqTransport

if TYPE_CHECKING:
    from collections.abc import Callable

    from branchline.protocol import RuntimeMessage

SERVER = (sys.executable, "-P", "-m", "branchline.runtime.server")
LAST_LINES = 20  # of the log, shown when the process has died
DEATH_SECONDS = 0.5  # from a broken connection to an exit status
END_SECONDS = 10.0  # what a process that was asked to end may take
POLL_SECONDS = 0.1
SHARED = ("heartbeat", "peer_timeout")  # settings that hold for both ends of the connection


class Runtime(Client):
    """A runtime in a process of its own, and the client connected to it.

    ::

        with Runtime("smollm2", max_running=16) as runtime:
            ...

    The process ends with `close()`, with the block, and when this process is gone, however.

    Args:
        model: what to serve: see `RuntimeConfig.model`.
        startup_timeout: seconds until the process must answer.
        settings: fields of `RuntimeConfig`, by name.

    Raises:
        RuntimeUnavailable: the process died (the message has its last lines), or did not answer
            in time.
    """

    def __init__(
        self, model: str = "smollm2", *, startup_timeout: float = 120.0, **settings: Any
    ) -> None:
        given = {name: value for name, value in settings.items() if value is not None}
        shared = {name: given[name] for name in SHARED if name in given}
        config = ClientConfig(startup_timeout=startup_timeout, **shared)
        self._process = _Process({"model": model, "address": private_address()} | given)
        atexit.register(self.close)
        try:
            super().__init__(_Connection(self._process, config), timeout=config.startup_timeout)
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    def close(self) -> None:
        """Leave and end the process. A second call does nothing."""
        super().close()
        atexit.unregister(self.close)
        self._process.end()


class _Process:
    """The operating system's side: start, last words, end."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.address: str = settings["address"]
        socket_path(self.address)  # one that no socket can have is refused before anything starts
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        flags = [f"--parent-pid={os.getpid()}"]
        flags += [as_flag(name, value) for name, value in settings.items()]
        self._child = subprocess.Popen(
            [*SERVER, *flags],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for the program; closing is up to us
        )

    @property
    def pid(self) -> int:
        return self._child.pid

    def epitaph(self, patience: float = 0.0) -> str | None:
        """How the process ended and what it said last; None while it lives."""
        try:
            status = self._child.wait(patience)
        except subprocess.TimeoutExpired:
            return None
        how = f"signal {-status}" if status < 0 else f"status {status}"
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").splitlines()[-LAST_LINES:]
        return "\n".join([f"its process ended with {how}; the last it said:", *lines])

    def end(self) -> None:
        """Ask the process to end, then make it."""
        self._child.terminate()
        try:
            self._child.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._log.close()
        path = socket_path(self.address)
        if path is not None:  # a killed process leaves it behind
            path.unlink(missing_ok=True)


class _Connection(ZmqTransport):
    """A connection to a child: its end is the loss, and its last words are the reason."""

    def __init__(self, process: _Process, config: ClientConfig) -> None:
        super().__init__(process.address, config)
        self._process = process

    def open(self, deliver: Callable[[RuntimeMessage], None], lose: Callable[[str], None]) -> None:
        super().open(deliver, lose)
        self._start(self._mind())

    async def _mind(self) -> None:
        """Watch the process until it answers; from then on the connection breaks when it ends."""
        while not self._seen:
            await asyncio.sleep(POLL_SECONDS)
            epitaph = self._process.epitaph()
            if epitaph is not None:
                super()._lose(epitaph)
                return

    def _lose(self, reason: str) -> None:
        super()._lose(self._process.epitaph(DEATH_SECONDS) or reason)


def as_flag(name: str, value: object) -> str:
    """A setting as a flag of the server's command line."""
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{flag}" if value else f"--no-{flag}"
    return f"--{flag}={value}"
