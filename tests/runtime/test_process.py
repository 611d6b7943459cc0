"""The real thing: the real model in a process of its own, the client here."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from branchline import eventloop
from branchline.errors import InvalidRequest, RuntimeUnavailable
from branchline.launcher import Runtime
from branchline.sampling_params import SamplingParams

if TYPE_CHECKING:
    from pathlib import Path


def test_a_runtime_serves_the_model_until_it_is_killed(
    smollm2_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    greedy = SamplingParams(max_tokens=8, temperature=0)
    with Runtime(str(smollm2_path), kv_memory="256MiB", check_invariants=True) as runtime:
        (completion,) = runtime.generate_text("The capital of France is", greedy)
        assert "Paris" in completion.text
        with pytest.raises(InvalidRequest, match="the context is"):
            runtime.generate_text("x " * 9000)
        assert runtime.card.chat_template is not None
        os.kill(runtime.pid, signal.SIGKILL)
        with pytest.raises(RuntimeUnavailable, match="signal 9"):
            eventloop.run(runtime.info())
