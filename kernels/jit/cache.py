"""Where machine code is kept between runs: compiling takes seconds, reading it back none.

Numba would ask only whether the file of a kernel has changed, not what it calls; here a change of
any file of this package makes all of it anew.
"""

from __future__ import annotations

import hashlib
import os
from functools import cache
from pathlib import Path
from typing import Any

from numba import types
from numba.core import sigutils
from numba.core.caching import CompileResultCacheImpl, FunctionCache, _CacheLocator
from numba.core.ccallback import CFunc


def compile_kernel(function: Any, fastmath: set[str]) -> Any:
    """A function of an int64 as machine code, with its `address`: read back, or made and kept."""
    signature = sigutils.normalize_signature(types.void(types.int64))
    code: Any = CFunc(function, signature, locals={}, options={"fastmath": fastmath})
    if PackageLocator.from_function(function, "") is not None:
        code._cache = _KernelCache(function)
    code.compile()
    return code


class PackageLocator(_CacheLocator):  # type: ignore[misc]
    """Tells Numba a folder of the user's, and a stamp of this package's sources."""

    def __init__(self, function: Any) -> None:
        self._line = function.__code__.co_firstlineno

    def get_cache_path(self) -> str:
        """XDG's folder for what can be made again."""
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        return str(Path(base) / "branchline" / "kernels")

    def get_source_stamp(self) -> str:
        """What the code was made from."""
        return _stamp()

    def get_disambiguator(self) -> str:
        """Kernels of one name are told apart by their line."""
        return str(self._line)

    @classmethod
    def from_function(cls, function: Any, _path: str) -> PackageLocator | None:
        """A locator for a kernel of this package; None if nothing can be kept."""
        locator = cls(function)
        try:
            locator.ensure_cache_path()
        except OSError:
            return None
        return locator


class _KernelCacheImpl(CompileResultCacheImpl):  # type: ignore[misc]
    _locator_classes = (PackageLocator,)


class _KernelCache(FunctionCache):  # type: ignore[misc]
    _impl_class = _KernelCacheImpl


@cache
def _stamp() -> str:
    sources = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()
