"""Every example, run as a user runs it, against one runtime with the real model."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import branchline
from branchline.runtime.cli import main

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture(scope="module")
def address(smollm2_path: Path) -> Iterator[str]:
    with branchline.Runtime(str(smollm2_path), kv_memory="512MiB") as runtime:
        yield runtime.address


@pytest.fixture
def run(
    address: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., str]]:
    """Runs an example with arguments; gives what it printed."""
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def run(name: str, *arguments: str) -> str:
        path = str(EXAMPLES / f"{name}.py")
        assert main(["run", "--address", address, path, *arguments]) == 0
        return capsys.readouterr().out

    yield run
    branchline.set_default_backend(None)


def shared(output: str) -> tuple[int, int]:
    """How many prompt tokens came from the cache, and of how many: what an example says last."""
    found = re.search(r"(\d+) of (\d+) prompt tokens came from the cache", output)
    assert found is not None, output
    return int(found[1]), int(found[2])


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_is_short(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) < 60


def test_every_example_is_run_here() -> None:
    tested = {"quickstart", "triage", "gsm8k", "tree_of_thought", "agent", "chat"}
    tested |= {"async_agent", "extraction", "debate", "tools"}
    assert {path.stem for path in EXAMPLES.glob("*.py")} == tested


def test_quickstart(run: Callable[..., str]) -> None:
    output = run("quickstart")
    assert "subject: biology" in output
    branches = re.findall(r"^follow_up, branch \d +(\d+) +(\d+) +(\d+)", output, re.MULTILINE)
    assert len(branches) == 3
    for asked, cached, computed in branches:
        assert int(asked) == int(cached) + int(computed)
        assert int(cached) > 90, "the conversation before the fork is shared"
        assert int(computed) < 30, "little more than the branch's own question is computed"


def test_triage(run: Callable[..., str]) -> None:
    output = run("triage")
    teams = re.findall(r"^[! ] (billing|shipping|technical) ", output, re.MULTILINE)
    assert len(teams) == 6
    cached, asked = shared(output)
    assert cached > asked / 2


def test_gsm8k(run: Callable[..., str]) -> None:
    output = run("gsm8k", "4")
    # what the data says, not the model
    assert re.findall(r"\(expected (\d+)\)", output) == ["18", "3", "70000", "540"]
    cached, asked = shared(output)
    assert cached > asked / 2


def test_tree_of_thought(run: Callable[..., str]) -> None:
    output = run("tree_of_thought")
    leaves = re.findall(r"^([* ]) ([+-]\d+\.\d\d) ", output, re.MULTILINE)
    assert len(leaves) == 6
    best = [float(confidence) for mark, confidence in leaves if mark == "*"]
    assert best == [max(float(confidence) for _, confidence in leaves)]
    cached, asked = shared(output)
    assert cached > asked / 2


def test_agent(run: Callable[..., str]) -> None:
    output = run("agent")
    assert "Action: lookup Lisbon\nResult: 545000\nAction: answer" in output
    assert "=> 545000" in output
    assert "=> Oslo" in output


def test_chat(run: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("What is the capital of France?\n\nOf Norway?\n"))
    output = run("chat")
    assert "Paris" in output
    turns = re.findall(r"\[(\d+) of (\d+) prompt tokens cached\]", output)
    assert len(turns) == 2, "an empty line is no turn"
    assert int(turns[1][0]) >= int(turns[0][1]), "the second turn finds the whole first one"


def test_async_agent(run: Callable[..., str]) -> None:
    answers = re.findall(r"^  => (.+)$", run("async_agent"), re.MULTILINE)
    assert len(answers) == 3
    assert "79" in answers[0]


def test_extraction(run: Callable[..., str]) -> None:
    output = run("extraction")
    assert "listing: Listing(item='tent', price=95, " in output
    assert "price=30, condition='used')" in output
    assert len(re.findall(r"^  cheap: (?:True|False)$", output, re.MULTILINE)) == 3


def test_tools(run: Callable[..., str]) -> None:
    output = run("tools")
    assert "  population({'city': 'Oslo'}) -> '709,000 people live in Oslo'" in output
    assert "  weather({'city': 'Paris', 'days': 3}) -> '3 days of sun in Paris'" in output
    assert "-> KeyError('Berlin')" in output
    counts = re.findall(r"^  (\d+) of (\d+) tokens had no alternative", output, re.MULTILINE)
    assert len(counts) == 4
    assert all(int(forced) > int(generated) / 2 for forced, generated in counts)


def test_debate(run: Callable[..., str]) -> None:
    output = run("debate")
    assert re.findall(r"^ +(for|against): because", output, re.MULTILINE) == ["for", "against"] * 2
    assert re.search(r"^The winner: (for|against) \(\d+%\), because", output, re.MULTILINE)
