"""`run`, `chat` and `info` against a runtime that is there."""

from __future__ import annotations

import io
import subprocess
import sys
import textwrap
import time
from typing import TYPE_CHECKING, Any

import pytest

import branchline
from branchline.client import Client, connect
from branchline.protocol import Generate
from branchline.runtime.cli import connection, main

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ANSWER = "all is well"
PROGRAM = """
    import sys
    import branchline as bl

    @bl.function
    def program(s, question):
        s += question
        s += bl.gen("answer")
        s += bl.select("mood", ["good", "bad"])

    if __name__ == "__main__":
        state = program.run(sys.argv[1])
        print(state["answer"], "|", state["mood"])
        sys.exit(7)
"""


@pytest.fixture(autouse=True)
def process_state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """`run` changes what belongs to the process, as a process of its own may; give it back."""
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    yield
    branchline.set_default_backend(None)


def written(folder: Path, source: str) -> str:
    path = folder / "program.py"
    path.write_text(textwrap.dedent(source), encoding="utf-8")
    return str(path)


def test_info(runtime: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "--address", runtime.address]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "3 running, 1 waiting" in out
    assert "640 free, 300 cached (200 in use), 60 private, of 1,000" in out
    assert "75.0% (300 of 400 prompt tokens)" in out
    assert "81.5 tokens/s" in out


def test_info_watch_ends_with_ctrl_c(runtime: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    naps = []

    def nap(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", nap)
    assert main(["info", "--watch", "--address", runtime.address]) == 130
    assert sum(message.type == "info" for message in runtime.heard) == 3


def test_info_without_a_runtime(capsys: pytest.CaptureFixture[str]) -> None:
    start = time.monotonic()
    assert main(["info"]) == 1
    assert "branchline serve" in capsys.readouterr().err
    assert time.monotonic() - start < 5, "nobody listens: there is nothing to wait for"


def test_run(runtime: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = written(tmp_path, PROGRAM)
    with pytest.raises(SystemExit) as end:
        main(["run", "--address", runtime.address, program, "How are you?"])
    assert end.value.code == 7
    assert capsys.readouterr().out == f"{ANSWER} | good\n"
    (asked,) = [message for message in runtime.heard if isinstance(message, Generate)]
    assert asked.prompt == (("program", "How are you?"),)


def test_run_gives_flags_after_the_program_to_it(
    runtime: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = written(tmp_path, "import sys; print(sys.argv[1:])")
    assert main(["run", "--address", runtime.address, program, "--address", "x", "-h"]) == 0
    assert capsys.readouterr().out == "['--address', 'x', '-h']\n"


def test_run_finds_modules_beside_the_program(
    runtime: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "beside_program.py").write_text("NAME = 'beside'")
    program = written(tmp_path, "import beside_program; print(beside_program.NAME)")
    assert main(["run", "--address", runtime.address, program]) == 0
    assert capsys.readouterr().out == "beside\n"


def test_a_traceback_starts_in_the_program(
    runtime: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = written(tmp_path, "def f():\n    return 1 / 0\nf()")
    assert main(["run", "--address", runtime.address, program]) == 1
    error = capsys.readouterr().err
    assert error.splitlines()[1].strip() == f'File "{program}", line 3, in <module>'
    assert "ZeroDivisionError" in error
    assert "runpy" not in error


def test_a_program_that_cannot_start_shows_no_frames_of_ours(
    runtime: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = written(tmp_path, "def f(:")
    assert main(["run", "--address", runtime.address, program]) == 1
    assert capsys.readouterr().err.splitlines()[0].strip() == f'File "{program}", line 1'


def test_settings_ask_for_a_runtime_of_that_kind(
    runtime: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[dict[str, object]] = []

    def start(**settings: object) -> Client:
        started.append(settings)
        return connect(runtime.address)

    monkeypatch.setattr(connection, "Runtime", start)
    monkeypatch.setattr(connection, "_is_served", lambda: True)
    program = written(tmp_path, "")
    assert main(["run", "--model", "some.gguf", "--no-cache", program]) == 0
    assert started == [{"model": "some.gguf", "cache": False}]


def test_a_setting_that_breaks_a_rule(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--max-running", "0"]) == 1
    assert "branchline serve: max_running=0: must be at least 1" in capsys.readouterr().err


def test_run_without_the_program(runtime: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--address", runtime.address, "nowhere.py"]) == 1
    assert "nowhere.py: no such file" in capsys.readouterr().err


def test_chat(
    runtime: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("Hello\n\nAnd now?\n"))
    assert main(["chat", "--address", runtime.address, "--system", "Be brief."]) == 0
    assert capsys.readouterr().out.count(ANSWER) == 2
    first, second = [message for message in runtime.heard if isinstance(message, Generate)]
    turns = "<system>Be brief.</system><user>Hello</user><assistant>"
    assert "".join(str(content) for _, content in first.prompt) == turns
    assert second.prompt[: len(first.prompt)] == first.prompt
    assert ("tokens", (1,)) in second.prompt
    assert second.stream


@pytest.mark.parametrize("command", ["info", "run", "chat"])
def test_without_torch(runtime: Any, tmp_path: Path, command: str) -> None:
    program = [written(tmp_path, PROGRAM), "Hi"] if command == "run" else []
    code = (
        "import sys\n"
        "for name in ('torch', 'transformers', 'tokenizers', 'gguf', 'safetensors', 'numpy'):\n"
        "    sys.modules[name] = None  # importing it raises ImportError\n"
        "from branchline.runtime.cli import main\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, command, "--address", runtime.address, *program],
        input="Hello\n",
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (7 if command == "run" else 0, "")
    assert ("3 running" if command == "info" else ANSWER) in done.stdout
