"""Ctrl-C while a script waits: what it waited for is aborted, not left running."""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING

import pytest

from branchline.client import connect
from branchline.sampling_params import SamplingParams
from tests.fake_runtime import running

if TYPE_CHECKING:
    from pathlib import Path


def test_who_stops_waiting_aborts(tmp_path: Path) -> None:
    with running(tmp_path) as runtime, connect(runtime.address) as client:

        def interrupt() -> None:
            runtime.wait_until(lambda: bool(runtime.loop.live))
            os.kill(os.getpid(), signal.SIGINT)

        ctrl_c = threading.Thread(target=interrupt)
        ctrl_c.start()
        with runtime.aborting(), pytest.raises(KeyboardInterrupt):
            client.generate_text(["a", "b"], SamplingParams(max_tokens=1900))
        ctrl_c.join()
        (again,) = client.generate_text("c", SamplingParams(max_tokens=2))
        assert len(again.ids) == 2
