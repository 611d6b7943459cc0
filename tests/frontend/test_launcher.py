"""`Runtime`: a process that starts, answers, dies, is ended; its server has a scripted loop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from branchline import eventloop, launcher
from branchline.client import connect
from branchline.errors import RuntimeUnavailable
from branchline.launcher import Runtime
from branchline.paths import socket_path
from branchline.protocol import Generate
from branchline.sampling_params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[2]
FAKE = ROOT / "tests" / "fake_runtime.py"


@pytest.fixture(autouse=True)
def fake_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(launcher, "SERVER", (sys.executable, "-P", str(FAKE)))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


def is_gone(pid: int) -> bool:
    """Whether a process has ended; one that nobody has waited for yet counts."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def wait_until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.01)


def test_a_runtime_answers_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with Runtime("toy", max_running=3, overlap=True, cache=False) as runtime:
        (completion,) = runtime.generate_text("ab", SamplingParams(max_tokens=3))
        assert completion.text == "cde"
        assert not is_gone(runtime.pid)
        with connect(runtime.address) as other:
            assert other.card.name == "toy"
    assert is_gone(runtime.pid)
    assert list((tmp_path / "branchline").iterdir()) == []
    runtime.close()


def test_two_runtimes_do_not_meet() -> None:
    with Runtime("toy") as first, Runtime("toy") as second:
        assert first.address != second.address
        assert len(first.generate_text("a")) == len(second.generate_text("a")) == 1


def test_a_runtime_that_cannot_start_says_why() -> None:
    begun = time.monotonic()
    with pytest.raises(RuntimeUnavailable, match=r"(?s)status 1.*model=broken: as asked"):
        Runtime("broken")
    assert time.monotonic() - begun < 30, "it did not wait for the start-up timeout"


@pytest.mark.parametrize(
    ("settings", "says"),
    [({"max_runing": 3}, "max-runing"), ({"max_running": 0}, "max_running=0")],
)
def test_a_wrong_setting_is_named(settings: dict[str, int], says: str) -> None:
    with pytest.raises(RuntimeUnavailable, match=says):
        Runtime("toy", **settings)


def test_a_runtime_that_does_not_answer_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "SERVER", (sys.executable, "-c", "import time; time.sleep(60)"))
    with pytest.raises(RuntimeUnavailable, match=r"within 0\.3 s"):
        Runtime("toy", startup_timeout=0.3)


def test_a_killed_runtime_is_noticed() -> None:
    runtime = Runtime("toy", heartbeat=0.1, peer_timeout=1.0)
    long = Generate("r", (("program", "x"),), SamplingParams(max_tokens=1900), stream=False)

    async def last() -> None:
        async for _ in runtime.generate(long):
            pass

    work = eventloop.submit(last())
    wait_until(lambda: eventloop.run(runtime.info()).running == 1)
    os.kill(runtime.pid, signal.SIGKILL)
    begun = time.monotonic()
    with pytest.raises(RuntimeUnavailable, match=r"(?s)signal 9.*toy at ipc:"):
        work.result(5)
    assert time.monotonic() - begun < 1.0
    with pytest.raises(RuntimeUnavailable):
        runtime.generate_text("x")
    runtime.close()
    path = socket_path(runtime.address)
    assert path is not None
    assert not path.exists()


def test_a_stopped_runtime_is_noticed_after_the_timeout() -> None:
    runtime = Runtime("toy", heartbeat=0.1, peer_timeout=0.5)
    os.kill(runtime.pid, signal.SIGSTOP)
    with pytest.raises(RuntimeUnavailable, match="silent"):
        runtime.generate_text("x")
    os.kill(runtime.pid, signal.SIGCONT)
    runtime.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_server_cleanly(tmp_path: Path, number: int) -> None:
    address = f"ipc://{tmp_path}/s.sock"
    command = [sys.executable, "-P", str(FAKE), "--model=toy", f"--address={address}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        with connect(address):
            server.send_signal(number)
            assert server.wait(10) == 0
        assert server.stdout is not None
        assert f"toy at {address}" in server.stdout.read()
    assert list(tmp_path.glob("*.sock")) == []


PARENT = """
import sys, time
from branchline import launcher
launcher.SERVER = (sys.executable, "-P", sys.argv[1])
runtime = launcher.Runtime("toy", heartbeat=0.1)
print(runtime.pid, flush=True)
if sys.argv[2] == "wait":
    time.sleep(60)
"""


@pytest.mark.parametrize("how", ["returns", "killed"])
def test_the_process_ends_with_its_parent(how: str) -> None:
    argument = "wait" if how == "killed" else "return"
    command = [sys.executable, "-P", "-c", PARENT, str(FAKE), argument]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        if how == "killed":
            parent.kill()
    wait_until(lambda: is_gone(pid))


def test_launching_needs_no_torch() -> None:
    code = "import sys, branchline.launcher, branchline.client\nprint('torch' in sys.modules)"
    command = [sys.executable, "-P", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
