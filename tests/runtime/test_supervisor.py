"""Parts that die, start again, give up and end in order: small scripts in place of real ones."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest

from branchline.errors import RuntimeUnavailable
from branchline.runtime import supervisor
from branchline.runtime.supervisor import Part, Restarts, Supervisor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

QUICK = Restarts(most=2, window=60, delay=0.02)
SERVES = "print('serving', flush=True)"
WAITS = "import time; time.sleep(60)"
DIES = "import os; os.kill(os.getpid(), 9)"


@pytest.fixture(autouse=True)
def handlers_come_back() -> Iterator[None]:
    before = [signal.getsignal(number) for number in supervisor.END_SIGNALS]
    yield
    assert [signal.getsignal(number) for number in supervisor.END_SIGNALS] == before


class Notes:
    """A file in which the scripts of a test leave words."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, word: str) -> str:
        """The line of a script that leaves a word."""
        return f"open({str(self._path)!r}, 'a').write({word + ' '!r})"

    def wait_after(self, words: int) -> str:
        """The line of a script that waits where there are that many."""
        count = f"len(open({str(self._path)!r}).read().split())"
        return f"import time; time.sleep(60 * ({count} >= {words}))"

    def words(self) -> list[str]:
        return self._path.read_text().split() if self._path.exists() else []


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    return Notes(tmp_path / "notes")


def part(name: str, *lines: str, restarts: Restarts = QUICK) -> Part:
    return Part(name, (sys.executable, "-P", "-c", "\n".join(lines)), restarts)


def run(parts: list[Part], until: Callable[[], bool], *signals: int) -> None:
    """Supervise until a condition holds; then send ourselves signals."""
    reached: list[bool] = []

    def wait_and_signal() -> None:
        end = time.monotonic() + 15
        while not until() and time.monotonic() < end:
            time.sleep(0.01)
        reached.append(until())
        for number in signals:
            os.kill(os.getpid(), number)
            time.sleep(0.1)

    thread = threading.Thread(target=wait_and_signal)
    thread.start()
    Supervisor(parts).run()
    thread.join()
    assert reached == [True], "it did not come about"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_parts_last_first(notes: Notes, number: int) -> None:
    def polite(name: str) -> Part:
        on_end = f"{notes.write(name + '-ended')}; raise SystemExit"
        handler = f"import signal\ndef end(*_): {on_end}\nsignal.signal(signal.SIGTERM, end)"
        return part(name, handler, SERVES, notes.write(name), WAITS)

    run([polite("runtime"), polite("gateway")], lambda: len(notes.words()) == 2, number)
    assert sorted(notes.words()[:2]) == ["gateway", "runtime"]
    assert notes.words()[2:] == ["gateway-ended", "runtime-ended"]


def test_a_part_that_dies_is_started_again(
    notes: Notes, capsys: pytest.CaptureFixture[str]
) -> None:
    mortal = part("runtime", SERVES, notes.write("x"), notes.wait_after(3), DIES)
    steady = part("gateway", SERVES, "import sys; print('oh', file=sys.stderr)", WAITS)
    run([mortal, steady], lambda: len(notes.words()) == 3, signal.SIGTERM)
    out, err = capsys.readouterr()
    assert out.count("runtime | serving\n") == 3
    assert out.count("gateway | serving\n") == 1
    assert "gateway | oh\n" in err
    died = "serve   | the runtime ended with signal 9; it is started again in"
    assert f"{died} 0.02 s (1 of 2)\n" in err
    assert f"{died} 0.04 s (2 of 2)\n" in err


def test_too_many_deaths_end_everything(notes: Notes) -> None:
    mortal = part("runtime", SERVES, notes.write("x"), "raise SystemExit(3)")
    steady = part("gateway", SERVES, WAITS)
    begun = time.monotonic()
    with pytest.raises(RuntimeUnavailable, match="status 3 and is not started again: 2 restarts"):
        Supervisor([mortal, steady]).run()
    assert notes.words() == ["x"] * 3
    assert time.monotonic() - begun < 10, "the gateway was told to end"


def test_a_part_that_cannot_start_is_not_tried_again(
    notes: Notes, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = part("runtime", notes.write("x"), "raise SystemExit('no such model')")
    with pytest.raises(RuntimeUnavailable, match="status 1 before it served"):
        Supervisor([wrong]).run()
    assert notes.words() == ["x"]
    assert "runtime | no such model\n" in capsys.readouterr().err


def test_one_that_was_killed_before_it_served_is_tried_again(notes: Notes) -> None:
    with pytest.raises(RuntimeUnavailable, match="signal 9 and is not started again"):
        Supervisor([part("runtime", notes.write("x"), DIES)]).run()
    assert notes.words() == ["x"] * 3


def test_deaths_of_long_ago_are_forgiven(notes: Notes) -> None:
    forgetful = Restarts(most=1, window=0.001, delay=0.01)
    mortal = part("runtime", SERVES, notes.write("x"), DIES, restarts=forgetful)
    run([mortal], lambda: len(notes.words()) >= 5, signal.SIGTERM)


def test_the_pauses_grow_up_to_a_bound() -> None:
    restarts = Restarts(most=7, delay=0.5, max_delay=10)
    pauses = [restarts.pause(earlier) for earlier in range(8)]
    assert pauses == [0.5, 1, 2, 4, 8, 10, 10, None]


def test_the_end_does_not_wait_for_a_restart(
    notes: Notes, capsys: pytest.CaptureFixture[str]
) -> None:
    patient = Restarts(most=5, delay=50, max_delay=50)
    mortal = part("runtime", SERVES, notes.write("x"), DIES, restarts=patient)
    said: list[str] = []

    def is_announced() -> bool:
        said.append(capsys.readouterr().err)
        return "started again in 50 s" in "".join(said)

    begun = time.monotonic()
    run([mortal], is_announced, signal.SIGTERM)
    assert time.monotonic() - begun < 10
    assert notes.words() == ["x"]


DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)"


def test_one_that_does_not_end_is_killed(
    notes: Notes, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(supervisor, "END_SECONDS", 0.3)
    deaf = part("runtime", DEAF, SERVES, notes.write("x"), WAITS)
    run([deaf], lambda: notes.words() == ["x"], signal.SIGTERM)
    assert "the runtime does not end; it is killed" in capsys.readouterr().err


def test_a_second_signal_does_not_wait(notes: Notes) -> None:
    deaf = part("runtime", DEAF, SERVES, notes.write("x"), WAITS)
    begun = time.monotonic()
    run([deaf], lambda: notes.words() == ["x"], signal.SIGINT, signal.SIGINT)
    assert time.monotonic() - begun < 5


def test_a_grandchild_that_holds_the_pipe_holds_up_nothing(notes: Notes) -> None:
    outlives = "import subprocess; subprocess.Popen(['sleep', '8'])"
    once = Restarts(most=1, delay=0.01)
    begun = time.monotonic()
    with pytest.raises(RuntimeUnavailable, match="signal 9"):
        Supervisor([part("runtime", SERVES, outlives, DIES, restarts=once)]).run()
    assert time.monotonic() - begun < 6


def test_a_bar_is_shown_as_it_ended(capsys: pytest.CaptureFixture[str]) -> None:
    bar = part("runtime", SERVES, r"print('\r 0%\r 50%\r100%', flush=True)", "raise SystemExit(1)")
    with pytest.raises(RuntimeUnavailable):
        Supervisor([Part(bar.name, bar.command, Restarts(most=0))]).run()
    assert capsys.readouterr().out == "runtime | serving\nruntime | 100%\n"
