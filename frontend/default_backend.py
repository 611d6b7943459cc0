"""The backend that answers programs which are run without one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from branchline.errors import InvalidRequest

if TYPE_CHECKING:
    from branchline.backend import Backend

_default: Backend | None = None


def set_default_backend(backend: Backend | None) -> None:
    """Let a backend answer every program of this process that is run without `backend=`."""
    global _default  # noqa: PLW0603 - a default of the process is what it is
    _default = backend


def resolve_backend(backend: Backend | None) -> Backend:
    """The backend given, else the default one.

    Raises:
        InvalidRequest: there is neither.
    """
    chosen = _default if backend is None else backend
    if chosen is None:
        raise InvalidRequest(
            "no backend to run on: pass backend= or call set_default_backend(...), with a Runtime, "
            "an Engine or what connect(address) returns"
        )
    return chosen
