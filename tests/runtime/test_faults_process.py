"""How a process of ours ends, and what it says when it cannot begin."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from branchline.errors import ModelError
from branchline.runtime.cli import main
from branchline.runtime.engine import Engine
from branchline.runtime.request import State
from branchline.runtime.streams import WorkerStream

from .stub import make_harness, make_request

if TYPE_CHECKING:
    import torch

AT_EXIT = """
import atexit
from branchline.runtime.streams import WorkerStream
stream = WorkerStream()
atexit.register(lambda: print(stream.submit(lambda: "done").result()))
"""


def test_a_stream_works_until_the_interpreter_has_ended() -> None:
    """An `Engine` that nobody closed ends in an exit handler, with a step in flight."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", AT_EXIT], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_a_job_that_raises_ends_neither_the_stream_nor_the_next_job() -> None:
    stream = WorkerStream()
    failed = stream.submit(lambda: 1 // 0)
    assert stream.submit(lambda: 2).result() == 2
    with pytest.raises(ZeroDivisionError):
        failed.result()
    stream.close()


def test_a_log_level_that_is_none_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BRANCHLINE_LOG_LEVEL", "loud")
    assert main(["serve", "nowhere.gguf"]) == 1
    assert "BRANCHLINE_LOG_LEVEL=LOUD: must be DEBUG" in capsys.readouterr().err


def test_the_dtype_reaches_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(_source: str, *, dtype: torch.dtype, quantization: str | None) -> None:
        raise ModelError(f"asked for {dtype}, {quantization}")

    monkeypatch.setattr("branchline.runtime.models.load.load", load)
    with pytest.raises(ModelError, match="bfloat16"):
        Engine(dtype="bfloat16")
    with pytest.raises(ModelError, match="float32, None"):
        Engine()


def test_the_hit_rate_is_that_of_prompts_that_were_computed() -> None:
    """A prompt that was aborted before its turn was not found in the tree."""
    harness = make_harness(max_running=1)
    first, second = (make_request([token, 2, 3], max_tokens=4) for token in (1, 1))
    harness.loop.submit([first, second])
    harness.step()
    assert second.state is State.WAITING
    harness.loop.abort([second])
    harness.run()
    counters = harness.loop.counters
    assert (counters.finished, counters.aborted) == (1, 1)
    assert (counters.prompt_tokens, counters.cached_prompt_tokens) == (3, 0)
