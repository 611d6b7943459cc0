"""Keeps processes running: starts them, starts them again when they die, ends them in order.

Needs nothing of the runtime: the process that does this stays small, and so does what can kill it.
"""

from __future__ import annotations

import queue
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

from branchline.errors import RuntimeUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
END_SECONDS = 10.0  # what a process that was asked to end may take
LAST_WORDS_SECONDS = 0.5  # for what a dead process had still written
NAME_WIDTH = 7  # of the log's first column


@dataclass(frozen=True, slots=True)
class Restarts:
    """How often a process that died is started again, and after what pause."""

    most: int = 5  # within the window; one more death is the last
    window: float = 300.0  # seconds
    delay: float = 0.5  # seconds before the first; each further one in the window takes twice that
    max_delay: float = 30.0

    def pause(self, earlier: int) -> float | None:
        """Seconds before a restart that follows `earlier` ones in the window; None: no more."""
        if earlier >= self.most:
            return None
        return float(min(self.max_delay, self.delay * 2**earlier))


@dataclass(frozen=True, slots=True)
class Part:
    """A program that is to run. The first line on its standard output says that it serves."""

    name: str
    command: Sequence[str]
    restarts: Restarts = Restarts()
    environment: Mapping[str, str] | None = None  # None: ours


class Supervisor:
    """Runs parts, in their order, and ends them in the reverse one.

    What they write goes to our own output and error, each line after the name of its part.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        # What ends the run: the number of a signal, or why a part cannot be kept up
        self._ends: queue.SimpleQueue[int | str] = queue.SimpleQueue()
        self._signals = 0  # heard since
        self._keepers = [Keeper(part, self._ends.put) for part in parts]

    def run(self) -> None:
        """Until a signal asks for the end; a second one does not wait for the parts.

        Raises:
            RuntimeUnavailable: a part could not start, or died more often than it is restarted.
        """
        before = {number: signal.signal(number, self._heard) for number in END_SIGNALS}
        try:
            for keeper in self._keepers:
                keeper.start()
            end = self._ends.get()
            self._signals = 0
        finally:
            for keeper in reversed(self._keepers):
                keeper.end(self._is_hurried)
            for number, handler in before.items():
                signal.signal(number, handler)
        if isinstance(end, str):
            raise RuntimeUnavailable(end)

    def _heard(self, number: int, _frame: object) -> None:
        self._signals += 1
        self._ends.put(number)

    def _is_hurried(self) -> bool:
        """Whether somebody has asked again."""
        return self._signals > 0


class Keeper(threading.Thread):
    """Keeps one part running, until it is told to end it or gives it up."""

    def __init__(self, part: Part, give_up: Callable[[str], None]) -> None:
        super().__init__(name=f"keeper of {part.name}", daemon=True)
        self._part = part
        self._give_up = give_up
        self._lock = threading.Lock()  # of the next two
        self._child: subprocess.Popen[bytes] | None = None
        self._ending = threading.Event()
        self._served = False  # whether any of its processes did
        self._restarted: deque[float] = deque()  # when, within the window

    def run(self) -> None:
        """Start the part, wait for its death, and so on."""
        while (child := self._launch()) is not None:
            status = self._attend(child)
            if self._ending.is_set():
                return
            pause = self._pause_after(status)
            if pause is None:
                return
            self._ending.wait(pause)

    def end(self, hurried: Callable[[], bool]) -> None:
        """Ask the process to end and wait for it; kill it when it takes too long."""
        with self._lock:
            self._ending.set()
            child = self._child
        if child is None:
            return
        child.terminate()
        deadline = time.monotonic() + END_SECONDS
        while child.poll() is None and time.monotonic() < deadline and not hurried():
            time.sleep(0.02)
        if child.poll() is None:
            say("serve", f"the {self._part.name} does not end; it is killed")
            child.kill()
        self.join(2 * LAST_WORDS_SECONDS)

    def _launch(self) -> subprocess.Popen[bytes] | None:
        """A new process; None once there shall be none."""
        with self._lock:
            if self._ending.is_set():
                return None
            self._child = subprocess.Popen(
                self._part.command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=self._part.environment,
                start_new_session=True,  # Ctrl-C is for us: the order in which they end is ours
            )
            return self._child

    def _attend(self, child: subprocess.Popen[bytes]) -> int:
        """Pass on what a process says until it ends; its status."""
        pairs = ((child.stdout, sys.stdout), (child.stderr, None))
        readers = [threading.Thread(target=self._relay, args=pair, daemon=True) for pair in pairs]
        for reader in readers:
            reader.start()
        status = child.wait()
        for reader in readers:  # a grandchild may hold the pipe: the dead are not waited for
            reader.join(LAST_WORDS_SECONDS)
        return status

    def _relay(self, source: IO[bytes], output: IO[str] | None) -> None:
        with source:
            for line in source:
                self._served |= output is not None
                say(self._part.name, line.decode(errors="replace").rstrip(), output)

    def _pause_after(self, status: int) -> float | None:
        """What a death means: seconds until the restart, or None, and everybody is told why."""
        how = f"signal {-status}" if status < 0 else f"status {status}"
        died = f"the {self._part.name} ended with {how}"
        if status >= 0 and not self._served:  # it would be so again: a setting, a file, a port
            self._give_up(f"{died} before it served; what it said is above")
            return None
        limits = self._part.restarts
        now = time.monotonic()
        while self._restarted and now - self._restarted[0] > limits.window:
            self._restarted.popleft()
        pause = limits.pause(len(self._restarted))
        if pause is None:
            many = f"{limits.most} restarts in {limits.window:g} s are the most"
            self._give_up(f"{died} and is not started again: {many}")
            return None
        self._restarted.append(now)
        number = f"{len(self._restarted)} of {limits.most}"
        say("serve", f"{died}; it is started again in {pause:g} s ({number})")
        return pause


def say(name: str, line: str, output: IO[str] | None = None) -> None:
    """Write a line of the common log: to our output, or else to the error stream."""
    text = line.rpartition("\r")[2]  # of a bar that was drawn over and over: what is left of it
    print(f"{name:<{NAME_WIDTH}} | {text}", file=output or sys.stderr, flush=True)
