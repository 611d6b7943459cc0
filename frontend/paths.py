"""Where runtimes of this user listen, and whether anybody does."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import stat
import sys
import tempfile
from pathlib import Path

from branchline.errors import InvalidRequest, RuntimeUnavailable

IPC = "ipc://"
MAX_SOCKET_PATH = 103 if sys.platform == "darwin" else 107  # bytes that a sockaddr_un holds

_serial = itertools.count()


def runtime_folder() -> Path:
    """The user's folder for sockets, made if it is missing: nobody else can enter it.

    Raises:
        RuntimeUnavailable: it exists and belongs to somebody else, or others may enter it.
    """
    base = os.environ.get("XDG_RUNTIME_DIR")
    folder = (
        Path(base) / "branchline"
        if base and Path(base).is_dir()
        else Path(tempfile.gettempdir()) / f"branchline-{os.getuid()}"
    )
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    private = stat.S_ISDIR(status.st_mode) and not status.st_mode & 0o077
    if status.st_uid != os.getuid() or not private:
        raise RuntimeUnavailable(
            f"{folder} is not a folder that only you can enter, so a socket in it would not be "
            "yours alone; remove it, or name an address"
        )
    return folder


def default_address() -> str:
    """Where `branchline serve` listens and `connect()` looks."""
    return f"{IPC}{runtime_folder() / 'runtime.sock'}"


def private_address() -> str:
    """A new address for a runtime that this process starts for itself."""
    return f"{IPC}{runtime_folder() / f'{os.getpid()}-{next(_serial)}.sock'}"


def claim(address: str) -> None:
    """Make an ipc address free to listen on: a socket that nobody answers is removed.

    ZeroMQ would take the address of a live runtime without a word; other transports refuse.

    Raises:
        RuntimeUnavailable: another runtime is listening there.
        InvalidRequest: the path is too long for a socket, or is a file of another kind.
    """
    path = socket_path(address)
    if path is None or not path.exists():
        return
    if not path.is_socket():
        raise InvalidRequest(f"address={address}: there is a file that is not a socket")
    if is_listening(path):
        raise RuntimeUnavailable(
            f"another runtime is listening at {address}; "
            "connect to it, end it, or name another address"
        )
    path.unlink()


def socket_path(address: str) -> Path | None:
    """The file of an ipc address; None for other transports and for Linux's abstract names."""
    name = address.removeprefix(IPC)
    if name == address or name.startswith("@"):
        return None
    if len(os.fsencode(name)) > MAX_SOCKET_PATH:
        raise InvalidRequest(
            f"address={address}: the path of a socket has at most {MAX_SOCKET_PATH} bytes"
        )
    return Path(name)


def is_listening(path: Path) -> bool:
    """Whether a process listens on a Unix socket: the kernel knows, however busy the process."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True  # its queue is full, or it is another user's: never ours to remove
    return True
