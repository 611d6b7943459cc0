"""How many pages there are and how long a request may be: decided once, at the start."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from branchline.errors import InvalidRequest
from branchline.runtime.config import MIN_CONTEXT, parse_bytes

if TYPE_CHECKING:
    from branchline.runtime.config import RuntimeConfig
    from branchline.runtime.models.inputs import Model

DEFAULT_SHARE = 4  # a quarter of the available memory
DEFAULT_MOST = 4 * 2**30  # bytes


@dataclass(frozen=True, slots=True)
class Limits:
    """What fits: a request within `max_context` fits when it runs alone, so it never starves."""

    pages: int  # the padding page included
    max_context: int  # prompt and output of one request together, in tokens

    def __post_init__(self) -> None:
        assert 2 <= self.max_context < self.pages, self


def size_memory(model: Model, config: RuntimeConfig) -> Limits:
    """The pool and the context that fit the memory.

    Raises:
        InvalidRequest: an explicit kv_memory or max_context does not fit, or less than the least
            context would.
    """
    available = available_memory()
    memory = min(available // DEFAULT_SHARE, DEFAULT_MOST)
    if config.kv_memory is not None:
        memory = parse_bytes(config.kv_memory)
        if memory > available:
            raise InvalidRequest(
                f"kv_memory={config.kv_memory}: {available / 2**20:,.0f} MiB are available"
            )
    return fit(memory, model, config, "", "kv_memory")


def fit(memory: int, model: Model, config: RuntimeConfig, source: str, setting: str) -> Limits:
    """The pool and the context that fit `memory` bytes of keys and values.

    Args:
        memory: bytes.
        model: says what a page takes, and its context.
        config: may ask for a context.
        source: what the memory comes from, for the error's text; may be empty.
        setting: the one to raise.

    Raises:
        InvalidRequest: an explicit max_context does not fit, or less than the least context would.
    """
    pages = memory // model.page_bytes
    wanted = min(config.max_context or model.context_length, model.context_length)
    fits = min(wanted, pages - 1)
    sizes = f"{memory / 2**20:.0f} MiB hold {max(pages - 1, 0)} tokens of {model.page_bytes} bytes"
    sizes += f", {source}" if source else ""
    if config.max_context is not None and config.max_context > model.context_length:
        raise InvalidRequest(
            f"max_context={config.max_context}: the model's own limit is {model.context_length}"
        )
    if config.max_context is not None and fits < config.max_context:
        raise InvalidRequest(
            f"max_context={config.max_context} does not fit: {sizes}; raise {setting}"
        )
    if fits < min(MIN_CONTEXT, model.context_length):
        raise InvalidRequest(f"{sizes}, under the least context of {MIN_CONTEXT}; raise {setting}")
    return Limits(pages=pages, max_context=fits)


def available_memory(root: Path = Path("/")) -> int:
    """Bytes that can be used without swapping: the machine's, within the container's limit."""
    meminfo = root / "proc/meminfo"
    if not meminfo.exists():
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
    machine = int(fields["MemAvailable"].split()[0]) * 1024
    return min([machine, *_container_memory(root / "sys/fs/cgroup")])


def _container_memory(group: Path) -> list[int]:
    """What is left of a control group's limit (version 2), if it has one."""
    limit, used = group / "memory.max", group / "memory.current"
    if not limit.exists() or not limit.read_text().strip().isdigit():
        return []
    return [max(0, int(limit.read_text()) - int(used.read_text()))]
