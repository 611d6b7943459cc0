"""How the pool and the context are sized at the start, and what refuses to start."""

from __future__ import annotations

import re

import pytest

from branchline.errors import InvalidRequest
from branchline.runtime import sizing
from branchline.runtime.config import RuntimeConfig
from branchline.runtime.sizing import Limits, size_memory

GIB = 2**30


class Model:
    vocab_size = 10
    context_length = 8192
    page_bytes = 2**16


real_available_memory = sizing.available_memory


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizing, "available_memory", lambda: 8 * GIB)


def size(context_length: int = 8192, **settings: object) -> Limits:
    model = Model()
    model.context_length = context_length
    return size_memory(model, RuntimeConfig(**settings))  # type: ignore[arg-type]


def test_a_quarter_of_what_is_available_but_at_most_4_gib(monkeypatch: pytest.MonkeyPatch) -> None:
    assert size() == Limits(pages=2 * GIB // Model.page_bytes, max_context=8192)
    monkeypatch.setattr(sizing, "available_memory", lambda: 100 * GIB)
    assert size().pages == 4 * GIB // Model.page_bytes


def test_an_amount_is_what_was_asked_for() -> None:
    assert size(kv_memory="3GiB").pages == 3 * GIB // Model.page_bytes
    assert size(kv_memory="1024MiB") == size(kv_memory=str(GIB)) == size(kv_memory="1GiB")


def test_the_context_is_cut_to_what_fits() -> None:
    """Padding is no page of a request: one within the limit fits when it runs alone."""
    assert size(kv_memory="256MiB") == Limits(pages=4096, max_context=4095)
    assert size(kv_memory="256MiB", max_context=2048).max_context == 2048
    assert size(context_length=500).max_context == 500, "a model's own limit may be small"


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"kv_memory": "256MiB", "max_context": 4096}, "max_context=4096 does not fit: 256 MiB"),
        ({"max_context": 8193}, "the model's own limit is 8192"),
        ({"max_context": 1023}, "must be at least 1024"),
        ({"kv_memory": "64MiB"}, "64 MiB hold 1023 tokens"),
        ({"kv_memory": "9GiB"}, "kv_memory=9GiB: 8,192 MiB are available"),
    ],
)
def test_what_cannot_fit_refuses_to_start(settings: dict[str, object], says: str) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(says)):
        size(**settings)


@pytest.mark.parametrize("amount", ["much", "-1GiB", "0", "nan", "infGiB", "1TiB", ""])
def test_what_is_no_amount_of_memory_is_refused(amount: str) -> None:
    with pytest.raises(InvalidRequest, match="not an amount of memory"):
        RuntimeConfig(kv_memory=amount)


@pytest.mark.parametrize("name", ["threads", "backlog_messages", "max_waiting", "chunk_tokens"])
def test_none_of_something_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match=f"{name}=0: must be at least 1"):
        RuntimeConfig(**{name: 0})


def test_a_dtype_that_is_not_supported_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="dtype=int8: must be one of float32"):
        RuntimeConfig(dtype="int8")


@pytest.mark.parametrize(
    ("limit", "expected"), [(None, 8 * GIB), ("max", 8 * GIB), (str(3 * GIB), 2 * GIB)]
)
def test_the_limit_of_a_container_counts(tmp_path, limit: str | None, expected: int) -> None:
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text(f"MemFree: 1 kB\nMemAvailable: {8 * GIB // 1024} kB\n")
    if limit is not None:
        (group / "memory.max").write_text(limit + "\n")
        (group / "memory.current").write_text(f"{GIB}\n")
    assert real_available_memory(tmp_path) == expected
