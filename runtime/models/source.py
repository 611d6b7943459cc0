"""From what a user calls a model to the file or directory that holds it."""

from __future__ import annotations

from pathlib import Path

from branchline.errors import ModelError
from branchline.runtime.models.catalog import CATALOG

# What serving needs of a hub repository: no second copy of the weights in another format.
_HUB_FILES = ("*.safetensors", "*.json", "*.jinja", "*.model", "merges.txt", "vocab.txt")


def resolve(source: str | Path) -> Path:
    """The GGUF file or Hugging Face directory of a catalogue name, a path or a hub name.

    A hub name is downloaded unless it is in Hugging Face's cache. A file or directory wins over a
    hub name, a catalogue name over both.

    Raises:
        ModelError: there is nothing of that name; the message says what there could be.
    """
    name = str(source)
    if name in CATALOG:
        return _pulled(name)
    path = Path(name).expanduser()
    if path.exists():
        return path
    if name.endswith(".gguf") or path.is_absolute() or name.startswith((".", "~")):
        raise ModelError(f"{name}: no such file or directory")
    if name.count("/") != 1:
        known = ", ".join(CATALOG)
        raise ModelError(
            f"{name!r} is not a model: write one of `branchline pull` ({known}), a GGUF file, a "
            "Hugging Face directory or a hub name like `owner/name`"
        )
    return _downloaded(name)


def _pulled(name: str) -> Path:
    path = CATALOG[name].path
    if not path.is_file():
        raise ModelError(f"{name} is not at {path}: run `branchline pull {name}`")
    return path


def _downloaded(name: str) -> Path:
    """The snapshot of a hub repository in Hugging Face's cache."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
    )

    try:
        return Path(snapshot_download(name, allow_patterns=list(_HUB_FILES)))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ModelError(
            f"{name}: cannot be fetched from the Hugging Face hub: {reason}"
        ) from error
