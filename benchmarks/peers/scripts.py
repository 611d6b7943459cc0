"""Engines that are measured by a script of their own, started anew in each round."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from measure import Result

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

BENCHMARKS = Path(__file__).parents[1]


class Script:
    """An engine behind a script that takes workloads and writes results.

    Args:
        name: what the table calls it.
        command: the script in this folder, and its flags.
        workloads: those it can run; None for all.
        forgets: whether it has a cache at all, so that `--warm` means something to it.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        workloads: Sequence[str] | None = None,
        forgets: bool = True,
    ) -> None:
        self.name = name
        self._command = command
        self._workloads = workloads
        self._forgets = forgets

    def measure(self, names: Sequence[str], *, warm: bool) -> Iterator[tuple[str, Result | None]]:
        """Run each workload once."""
        wanted = [name for name in names if self._workloads is None or name in self._workloads]
        if not wanted:
            return
        flags = ["--warm"] if warm and self._forgets else []
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "results.json"
            script, *settings = self._command
            command = [sys.executable, str(BENCHMARKS / script), *wanted, *settings, *flags]
            subprocess.run(
                [*command, f"--json={file}"],
                check=True,
                stdout=subprocess.DEVNULL,
                env=os.environ | {"TQDM_DISABLE": "1"},  # loading draws bars otherwise
            )
            results = json.loads(file.read_text(encoding="utf-8"))["results"]
        for name in wanted:
            (run,) = results[name]
            yield name, Result(**run)

    def end(self) -> None:
        """Nothing: the script has ended with its last result."""
