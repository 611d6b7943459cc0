"""The `branchline` command: `pull`, `serve`, `run`, `trace`, `chat`, `info`, `top`, `doctor`.

Promises: flags are the fields of `RuntimeConfig`; `run`, `trace`, `chat`, `info` and `top`
against a runtime that is there need no torch.
"""

from __future__ import annotations

from branchline.runtime.cli.commands import main

__all__ = ["main"]
