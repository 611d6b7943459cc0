"""Makes a checkout importable on a machine that has torch and triton, and nothing of ours."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


def make_importable(root: Path) -> None:
    """Let `branchline` be the checkout at `root`, unless it is installed."""
    if importlib.util.find_spec("branchline") is None:
        package = ModuleType("branchline")
        # The folder of the package itself, then the one with its parts: kernels, radix, runtime.
        package.__path__ = [str(root / "frontend"), str(root)]
        sys.modules["branchline"] = package
    if importlib.util.find_spec("pydantic") is None:
        sys.modules["pydantic"] = _without_checks()


def _without_checks() -> ModuleType:
    """What our messages need of pydantic to be declared; no message is read in a benchmark."""

    class TypeAdapter:
        def __init__(self, *_: Any) -> None: ...

        __class_getitem__ = classmethod(lambda cls, _: cls)

    module = ModuleType("pydantic")
    module.ConfigDict = module.Field = dict  # type: ignore[attr-defined]
    module.TypeAdapter = TypeAdapter  # type: ignore[attr-defined]
    module.ValidationError = ValueError  # type: ignore[attr-defined]
    return module
