"""Builds automata in processes of their own.

The construction is plain Python: in a thread it would hold the interpreter's lock, and with it the
engine, for milliseconds at a time. A process also has a limit of memory, and can be killed.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from branchline.runtime.grammar.byte_automaton import ByteAutomaton

SECONDS = 30.0  # of one pattern; its steps are bounded, so only a stalled machine takes so long
_PROCESSES = 2  # one for the others while a pattern takes long


class PatternProcesses:
    """A few processes, started when they are first needed and kept. Safe to use from any thread."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self._seconds = seconds
        self._idle: list[subprocess.Popen[bytes]] = []
        self._busy: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._free = threading.BoundedSemaphore(_PROCESSES)
        self._closed = False

    def build(self, source: str) -> ByteAutomaton:
        """The automaton of a pattern; waits until a process is free and has built it.

        Raises:
            ValueError: the pattern is refused, or takes too long.
        """
        with self._free:
            process, fresh = self._take()
            late = threading.Event()
            timer = threading.Timer(self._seconds, _kill, (process, late))
            try:
                if fresh:
                    _reply(process)  # it has started
                timer.start()
                _send(process, source)
                reply = _reply(process)
            except (EOFError, OSError, pickle.UnpicklingError):
                process.kill()
                raise ValueError(self._lost(process.wait(), late.is_set())) from None
            finally:
                timer.cancel()
                if timer.ident is not None:
                    timer.join()  # if it was too late to cancel, it has killed now
                self._give_back(process, alive=not late.is_set())
        if isinstance(reply, ValueError):
            raise reply
        automaton: ByteAutomaton = reply
        return automaton

    def close(self) -> None:
        """Kill the processes; a pattern that is being built fails."""
        with self._lock:
            self._closed = True
            for process in self._busy:  # whoever waits for it takes it away
                process.kill()
            idle, self._idle = self._idle, []
        for process in idle:
            _end(process)

    def _take(self) -> tuple[subprocess.Popen[bytes], bool]:
        """A process, and whether it is new."""
        with self._lock:
            if self._closed:
                raise ValueError("the runtime is closing")
            while self._idle:
                process = self._idle.pop()
                if process.poll() is None:
                    self._busy.add(process)
                    return process, False
                _end(process)
            process = _start()
            self._busy.add(process)
            return process, True

    def _give_back(self, process: subprocess.Popen[bytes], *, alive: bool) -> None:
        with self._lock:
            self._busy.discard(process)
            if alive and process.poll() is None and not self._closed:
                self._idle.append(process)
                return
        _end(process)

    def _lost(self, status: int, late: bool) -> str:
        if late:
            return f"its automaton takes more than {self._seconds:g} seconds to build"
        if self._closed:
            return "the runtime is closing"
        return f"its automaton could not be built: the process for it ended with status {status}"


def _start() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "branchline.runtime.grammar.pattern_worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        start_new_session=True,  # an interrupt of the terminal is for the runtime
    )


def _send(process: subprocess.Popen[bytes], source: str) -> None:
    assert process.stdin is not None
    pickle.dump(source, process.stdin)
    process.stdin.flush()


def _reply(process: subprocess.Popen[bytes]) -> Any:
    assert process.stdout is not None
    return pickle.load(process.stdout)


def _kill(process: subprocess.Popen[bytes], late: threading.Event) -> None:
    late.set()
    process.kill()


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        assert stream is not None
        with suppress(BrokenPipeError):  # what it had not yet read
            stream.close()
