"""`branchline trace`: the program runs as under `run`, and there is a page of it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from branchline.runtime.cli import main

from .conftest import ANSWER

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = """
import branchline as bl

@bl.function
def ask(s, question):
    s += bl.user(question) + bl.assistant(bl.gen("answer"))
    branches = s.fork(2)
    branches += bl.select("sure", ["yes", "no"])
    branches.join()

print(ask.run("Is all <well>?")["answer"])
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def trace(runtime: Any, path: Path, program: str, *flags: str) -> int:
    path.joinpath("ask.py").write_text(program)
    return main(["trace", "--address", runtime.address, *flags, str(path / "ask.py")])


def test_trace(runtime: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert trace(runtime, tmp_path, PROGRAM) == 0
    out, err = capsys.readouterr()
    assert out == ANSWER + "\n"
    assert "1 run traced in ask.trace.html" in err
    page = (tmp_path / "ask.trace.html").read_text()
    assert page.count("<mark") == 3
    assert ANSWER in page
    assert "Is all &lt;well&gt;?" in page


def test_trace_as_data(runtime: Any, tmp_path: Path) -> None:
    flags = ("--json", str(tmp_path / "t.json"), "--output", str(tmp_path / "t.html"))
    assert trace(runtime, tmp_path, PROGRAM, *flags) == 0
    (data,) = json.loads((tmp_path / "t.json").read_text())
    assert data["program"] == "ask"
    assert data["state"]["usage"]["requests"] == 3
    assert (tmp_path / "t.html").exists()


def test_a_program_that_raises_is_traced_up_to_there(
    runtime: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert trace(runtime, tmp_path, PROGRAM + "\nask('again').sync()\n1 / 0\n") == 1
    assert "ZeroDivisionError" in capsys.readouterr().err
    assert (tmp_path / "ask.trace.html").read_text().count("<mark") == 6


def test_a_program_that_exits(runtime: Any, tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        trace(runtime, tmp_path, PROGRAM + "\nraise SystemExit(3)\n")
    assert ended.value.code == 3
    assert (tmp_path / "ask.trace.html").exists()


def test_a_program_that_is_not_there(
    runtime: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["trace", "--address", runtime.address, "none.py"]) == 1
    assert "none.py: no such file" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
