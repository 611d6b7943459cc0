"""`branchline serve --http`: what clients see when the runtime is killed, and how it all ends."""

from __future__ import annotations

import http.client
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import pytest

from branchline.client import connect
from branchline.errors import RuntimeUnavailable
from branchline.sampling_params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SCRIPT = Path(__file__).with_name("serve_fake.py")
LONG = {"prompt": "x", "max_tokens": 1900, "model": "toy"}
KEY = "sesame"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


def until(condition: Callable[[], Any], seconds: float = 20.0) -> Any:
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.02)
    return found


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@dataclass
class Command:
    """A `branchline serve` that runs, with what it says."""

    process: subprocess.Popen[str]
    port: int
    address: str
    lines: list[str] = field(default_factory=list)

    def read(self, stream: IO[str]) -> None:
        for line in stream:
            self.lines.append(line.rstrip())

    def said(self, text: str) -> list[str]:
        return [line for line in self.lines if text in line]

    def pids(self) -> dict[str, int]:
        """The processes of ours, by what they run."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                arguments = (folder / "cmdline").read_text()
            except (FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
                continue
            if parent == self.process.pid:
                name = "gateway" if "branchline.gateway" in arguments else "runtime"
                found[name] = int(folder.name)
        return found

    def another_runtime(self, old: int | None) -> int | None:
        """The runtime's process, if it is not the old one."""
        pid = self.pids().get("runtime")
        return None if pid == old else pid

    def get(self, path: str) -> tuple[int, Any]:
        return self._ask("GET", path, None)

    def post(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        return self._ask("POST", path, body)

    def _ask(self, method: str, path: str, body: dict[str, Any] | None) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            content = None if body is None else json.dumps(body)
            headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
            connection.request(method, path, content, headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    def stream(self, path: str, body: dict[str, Any]) -> list[Any]:
        """The events of an answer that ends, however."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            lines = connection.getresponse().read().decode().splitlines()
            return [json.loads(line.removeprefix("data: ")) for line in lines if line]
        finally:
            connection.close()

    def is_healthy(self) -> bool:
        try:
            return self.get("/health")[0] == 200
        except ConnectionError:
            return False


@contextmanager
def command(folder: Path, *flags: str, http_too: bool = True) -> Iterator[Command]:
    """The command, from its start until it has ended."""
    port, address = free_port(), f"ipc://{folder}/toy.sock"
    given = [f"--address={address}", *([f"--http={port}"] if http_too else []), *flags]
    process = subprocess.Popen(
        [sys.executable, "-P", str(SCRIPT), *given],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    running = Command(process, port, address)
    assert process.stdout is not None
    reader = threading.Thread(target=running.read, args=(process.stdout,))
    reader.start()
    try:
        yield running
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(20)
        reader.join()
        process.stdout.close()


def test_a_killed_runtime_is_started_again_under_the_same_clients(tmp_path: Path) -> None:
    """The issue's fifth line: errors within 2 s, the gateway up throughout, then served again."""
    with command(tmp_path) as serve:
        until(serve.is_healthy)
        client = connect(serve.address)
        (before,) = client.generate_text("ab", SamplingParams(max_tokens=3))
        first = serve.pids()
        failures: queue.Queue[tuple[float, object]] = queue.Queue()

        def ask_over_http() -> None:
            failures.put((time.monotonic(), serve.post("/v1/completions", LONG)))

        def ask_for_a_stream() -> None:
            events = serve.stream("/v1/completions", {**LONG, "stream": True})
            failures.put((time.monotonic(), (503, events[-1])))

        def ask_through_the_frontend() -> None:
            try:
                client.generate_text("x", SamplingParams(max_tokens=1900))
            except RuntimeUnavailable as error:
                failures.put((time.monotonic(), error))

        ways = (ask_over_http, ask_over_http, ask_for_a_stream, ask_through_the_frontend)
        asked = [threading.Thread(target=way) for way in ways]
        for thread in asked:
            thread.start()
        until(lambda: serve.get("/info")[1]["runtime"]["running"] == 4)
        os.kill(first["runtime"], signal.SIGKILL)
        killed = time.monotonic()
        for thread in asked:
            thread.join()
        assert failures.qsize() == 4
        for _ in range(4):
            when, failure = failures.get()
            assert when - killed < 2
            if isinstance(failure, tuple):
                assert failure[0] == 503
                assert "lost the runtime" in failure[1]["error"]["message"]
            else:
                assert "lost the runtime" in str(failure)
        status, refused = serve.get("/health")
        while status != 200:
            assert status == 503, "the gateway itself always answers"
            assert "lost the runtime" in refused["error"]["message"]
            status, refused = serve.get("/health")
        status, answer = serve.post("/v1/completions", {**LONG, "prompt": "ab", "max_tokens": 3})
        assert (status, answer["choices"][0]["text"]) == (200, before.text)
        (after,) = client.generate_text("ab", SamplingParams(max_tokens=3))
        assert after.text == before.text
        client.close()
        second = serve.pids()
        assert second["gateway"] == first["gateway"]
        assert second["runtime"] != first["runtime"]
    assert serve.process.returncode == 0
    assert serve.said("serve   | the runtime ended with signal 9; it is started again in 0.5 s")
    assert len(serve.said("runtime | toy at ipc:")) == 2
    assert len(serve.said(f"gateway | gateway at http://127.0.0.1:{serve.port}")) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_both_and_leaves_nothing(tmp_path: Path, number: int) -> None:
    with command(tmp_path) as serve:
        until(serve.is_healthy)
        pids = serve.pids()
        assert set(pids) == {"gateway", "runtime"}
        begun = time.monotonic()
        serve.process.send_signal(number)
        assert serve.process.wait(10) == 0
        assert time.monotonic() - begun < 5
    assert all(is_gone(pid) for pid in pids.values())
    assert list(tmp_path.glob("*.sock")) == []
    assert not serve.said("Traceback")


def test_both_end_with_a_supervisor_that_was_killed(tmp_path: Path) -> None:
    with command(tmp_path, "--heartbeat=0.2") as serve:
        until(serve.is_healthy)
        pids = serve.pids()
        serve.process.kill()
        serve.process.wait()
        until(lambda: all(is_gone(pid) for pid in pids.values()))


def test_a_runtime_that_keeps_dying_is_given_up(tmp_path: Path) -> None:
    with command(tmp_path, "--restarts=1") as serve:
        until(serve.is_healthy)
        pid = None
        for _ in range(2):  # just after its end a process may still be listed
            pid = until(lambda old=pid: serve.is_healthy() and serve.another_runtime(old))
            os.kill(pid, signal.SIGKILL)
            until(lambda pid=pid: is_gone(pid))
        assert serve.process.wait(20) == 1
    (last,) = serve.said("branchline serve: ")
    assert "signal 9 and is not started again: 1 restarts in 300 s are the most" in last


def test_a_port_that_is_taken_ends_the_command(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with command(tmp_path, f"--http={port}") as serve:
            assert serve.process.wait(20) == 1
    assert serve.said("gateway | gateway: ")
    assert serve.said("branchline serve: the gateway ended with status 1 before it served")


def test_keys_reach_the_gateway_and_no_list_of_processes(tmp_path: Path) -> None:
    with command(tmp_path, f"--api-key={KEY}", "--api-key=other") as serve:
        until(serve.is_healthy)
        assert serve.get("/info")[0] == 200
        arguments = Path(f"/proc/{serve.pids()['gateway']}/cmdline").read_text()
        assert "port" in arguments
        assert KEY not in arguments
        connection = http.client.HTTPConnection("127.0.0.1", serve.port, timeout=20)
        connection.request("GET", "/info", headers={"Authorization": "Bearer nonsense"})
        assert connection.getresponse().status == 401
        connection.close()


def test_restarts_without_http(tmp_path: Path) -> None:
    with (
        command(tmp_path, "--restarts=3", http_too=False) as serve,
        connect(serve.address, reconnect_timeout=15) as client,
    ):
        pid = until(lambda: serve.pids().get("runtime"))
        os.kill(pid, signal.SIGKILL)
        until(lambda: client.lost is not None)
        assert len(client.generate_text("ab", SamplingParams(max_tokens=3))) == 1
        assert serve.pids()["runtime"] != pid
    assert serve.process.returncode == 0


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--api-key=x"], "--api-key: needs --http PORT"),
        (["--http-max-open=3"], "--http-max-open: needs --http PORT"),
        (["--restarts=-1"], "restarts=-1: must be at least 0"),
        (["--http=1", "--address=tcp://127.0.0.1:*"], "name the port"),
        (["--http=1", "--api-key="], "at least one character"),
        (["--http=70000"], "a port is from 0 to 65535"),
        (["--http=1", "--api-key=a b"], "no spaces"),
    ],
)
def test_flags_that_do_not_go_together(
    flags: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from branchline.runtime.cli import main

    assert main(["serve", "toy", *flags]) == 1
    assert says in capsys.readouterr().err
