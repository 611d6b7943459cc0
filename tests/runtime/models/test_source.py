"""From a name to a path, and what is said when there is nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from branchline.errors import ModelError
from branchline.runtime.models.catalog import CATALOG, cache_folder
from branchline.runtime.models.source import resolve

if TYPE_CHECKING:
    from pathlib import Path


def test_the_cache_follows_xdg(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "branchline"
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for ignored in ("", "relative/path"):
        monkeypatch.setenv("XDG_CACHE_HOME", ignored)
        assert cache_folder() == tmp_path / "home" / ".cache" / "branchline"


def test_a_name_of_the_catalogue(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(ModelError, match="run `branchline pull smollm2`"):
        resolve("smollm2")
    path = CATALOG["smollm2"].path
    path.parent.mkdir(parents=True)
    path.touch()
    assert resolve("smollm2") == path


def test_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve(tmp_path) == tmp_path
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "some.gguf").touch()
    assert resolve("~/some.gguf") == tmp_path / "some.gguf"
    for absent in (str(tmp_path / "absent"), "./absent", "~/absent", "a/absent.gguf"):
        with pytest.raises(ModelError, match="no such file or directory"):
            resolve(absent)


def test_neither_a_path_nor_a_name() -> None:
    with pytest.raises(ModelError, match=r"'smollm3' is not a model: .*smollm2.*owner/name"):
        resolve("smollm3")


def test_a_hub_name_without_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match="nobody/nothing: cannot be fetched from the Hugging Face"):
        resolve("nobody/nothing")
