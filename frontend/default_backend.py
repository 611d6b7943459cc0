"""The backend that answers programs which are run without one."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from branchline.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from branchline.backend import Backend

_default: Backend | None = None
_in_use: ContextVar[Backend | None] = ContextVar("branchline_backend", default=None)


def set_default_backend(backend: Backend | None) -> None:
    """Let a backend answer every program of this process that is run without `backend=`."""
    global _default  # noqa: PLW0603 - a default of the process is what it is
    _default = backend


@contextmanager
def using(backend: Backend) -> Iterator[None]:
    """Let a backend answer the programs that are run inside the `with` block without `backend=`.

    It counts for this thread or task only, and comes before `set_default_backend`.
    """
    token = _in_use.set(backend)
    try:
        yield
    finally:
        _in_use.reset(token)


def default_backend() -> Backend | None:
    """The backend of programs that are run without one, if there is one."""
    return _in_use.get() or _default


def resolve_backend(backend: Backend | None) -> Backend:
    """The backend given, else the default one.

    Raises:
        InvalidRequest: there is neither.
    """
    chosen = default_backend() if backend is None else backend
    if chosen is None:
        raise InvalidRequest(
            "no backend to run on: pass backend= or call set_default_backend(...), with a Runtime, "
            "an Engine or what connect(address) returns"
        )
    return chosen
