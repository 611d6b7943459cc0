"""Where runtimes listen: the folder is private, addresses are sane, stale sockets go."""

from __future__ import annotations

import os
import socket
import stat
import tempfile
from pathlib import Path

import pytest

from branchline.errors import InvalidRequest, RuntimeUnavailable
from branchline.paths import (
    claim,
    default_address,
    is_listening,
    private_address,
    runtime_folder,
    socket_path,
)


def test_the_folder_is_in_the_users_runtime_folder(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert runtime_folder() == tmp_path / "branchline"
    assert stat.S_IMODE(runtime_folder().stat().st_mode) == 0o700
    assert default_address() == f"ipc://{tmp_path}/branchline/runtime.sock"


@pytest.mark.parametrize("value", [None, "", "/nowhere/at/all"])
def test_without_one_it_is_a_private_temporary_folder(monkeypatch, tmp_path, value) -> None:
    if value is None:
        monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    else:
        monkeypatch.setenv("XDG_RUNTIME_DIR", value)
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    folder = runtime_folder()
    assert folder == tmp_path / f"branchline-{os.getuid()}"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize("kind", ["open to others", "a link", "a file"])
def test_a_folder_that_others_could_have_made_is_not_used(monkeypatch, tmp_path, kind) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    folder = tmp_path / "branchline"
    if kind == "open to others":
        folder.mkdir()
        folder.chmod(0o777)
    elif kind == "a link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        folder.symlink_to(tmp_path / "elsewhere")
    else:
        folder.touch(mode=0o600)
    with pytest.raises(RuntimeUnavailable, match="only you can enter"):
        runtime_folder()


def test_private_addresses_differ(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert len({default_address(), *(private_address() for _ in range(9))}) == 10


def test_socket_path() -> None:
    assert socket_path("ipc:///a/b") == Path("/a/b")
    assert socket_path("ipc://@abstract") is None
    assert socket_path("tcp://127.0.0.1:3") is None
    with pytest.raises(InvalidRequest, match="107 bytes"):
        socket_path("ipc:///" + "ä" * 60)


def test_claim_removes_a_socket_that_nobody_answers(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(1)
        assert is_listening(path)
        with pytest.raises(RuntimeUnavailable, match="another runtime is listening"):
            claim(f"ipc://{path}")
        assert path.exists()
    assert not is_listening(path)
    claim(f"ipc://{path}")
    assert not path.exists()
    claim(f"ipc://{path}")
