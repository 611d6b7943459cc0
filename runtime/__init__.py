"""The runtime: scheduler, memory, loop, models, sampling, text, and the process around them.

`Engine` runs it in this process, `branchline serve` in one of its own. Naming `Engine` imports
torch, importing this package does not: the CLI can talk to a running process without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from branchline.runtime.engine import Engine

__all__ = ["Engine"]


def __getattr__(name: str) -> Any:
    if name == "Engine":
        from branchline.runtime.engine import Engine

        return Engine
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
