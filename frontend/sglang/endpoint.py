"""`RuntimeEndpoint`: the runtime at an address, or the one that `branchline run` has brought."""

from __future__ import annotations

from typing import TYPE_CHECKING

from branchline.client import connect
from branchline.default_backend import resolve_backend
from branchline.sglang.backend import BaseBackend, Endpoint
from branchline.sglang.runtimes import Runtime

if TYPE_CHECKING:
    from branchline.backend import Backend

__all__ = ["BaseBackend", "Runtime", "RuntimeEndpoint", "serve_at", "served_at"]

_served: dict[str, Backend] = {}  # by what a program calls the address of a server it has started


def serve_at(url: str, backend: Backend | None) -> None:
    """Let an HTTP address stand for a backend; None takes it back."""
    if backend is None:
        _served.pop(_normal(url), None)
    else:
        _served[_normal(url)] = backend


def served_at(url: str) -> Backend:
    """The backend that an address stands for.

    A ZeroMQ address is connected to. An HTTP address is that of a server which the program has
    started with `launch_server_cmd`, else it is SGLang's way to say "the server": the default
    backend, which is the runtime of `branchline run`.

    Raises:
        RuntimeUnavailable: nobody answers at the ZeroMQ address.
        InvalidRequest: there is no default backend.
    """
    if url.startswith(("ipc://", "tcp://")):
        return connect(url)
    return _served.get(_normal(url)) or resolve_backend(None)


class RuntimeEndpoint(Endpoint):
    """SGLang's name for a backend at an address; `served_at` says which one that is here.

    Args:
        base_url: the address.
        api_key: not needed.
        verify: not needed.
        chat_template_name: a named template in place of the model's own.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        verify: str | None = None,
        chat_template_name: str | None = None,
    ) -> None:
        super().__init__(served_at(base_url), chat_template_name)
        self.base_url = base_url


def _normal(url: str) -> str:
    bare = url.rstrip("/").removeprefix("http://").removeprefix("https://")
    return bare.replace("localhost", "127.0.0.1").replace("0.0.0.0", "127.0.0.1")
