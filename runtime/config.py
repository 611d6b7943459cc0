"""The runtime's settings: one frozen record, from which the CLI takes its flags and their help."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from branchline.errors import InvalidRequest

MIN_CONTEXT = 1024
DEVICES = ("auto", "cpu", "cuda", "cuda-interpreted")
DTYPES = ("float32", "bfloat16", "float16")
_UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def _setting(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeConfig:
    """How one runtime is set up. Fields are in the order in which they take effect."""

    # What is served, and where
    model: str = _setting(
        "smollm2",
        "a name of `branchline pull`, a GGUF file, a Hugging Face directory or a hub name",
    )
    address: str | None = _setting(
        None, "ZeroMQ address to listen on (default: an ipc:// socket in your runtime folder)"
    )
    device: str = _setting(
        "auto", f"{', '.join(DEVICES)}; auto: cuda if there is one (cuda-interpreted: for tests)"
    )
    dtype: str | None = _setting(
        None,
        f"of weights, keys and values: {', '.join(DTYPES)} (default: float32 on cpu, bfloat16 on "
        "cuda)",
    )
    quantization: str | None = _setting(
        None, "int8: the CPU's linears in 8 bits, about twice as fast (default: none)"
    )
    # What it may use
    kv_memory: str | None = _setting(
        None,
        "memory for keys and values, e.g. 2GiB (default: on cuda what the fraction leaves, on cpu "
        "a quarter of the available, at most 4GiB)",
    )
    memory_fraction: float = _setting(
        0.9, "cuda: of the device's memory, for weights, activations, and keys and values together"
    )
    max_context: int | None = _setting(
        None,
        "prompt and output together, in tokens (default: what the model has and the memory fits)",
    )
    max_running: int = _setting(64, "requests computed at the same time")
    threads: int | None = _setting(None, "threads of the CPU device (default: torch's choice)")
    # How it schedules
    max_batch_tokens: int = _setting(512, "tokens computed in one step")
    chunk_tokens: int = _setting(512, "tokens of one prompt computed in one step")
    overtake_bound: int = _setting(64, "a waiting request overtaken this often is admitted next")
    overlap: bool = _setting(
        default=True, text="run host work while the device computes the next step"
    )
    cascade: bool = _setting(
        default=True, text="read a prefix that running requests share once for all of them"
    )
    deterministic: bool = _setting(
        default=False,
        text="a prompt's ids and how it is attended to do not depend on other requests: earlier "
        "answers are tokenized anew, and nothing is read for several requests at once",
    )
    cache: bool = _setting(default=True, text="keep computed prefixes for later requests")
    # When it gives up
    max_waiting: int = _setting(100_000, "waiting requests; one more is refused")
    backlog_messages: int = _setting(
        4096, "messages a client may leave unread before its requests end"
    )
    heartbeat: float = _setting(2.0, "seconds between signs of life")
    peer_timeout: float = _setting(15.0, "seconds of silence after which a client counts as gone")
    # What it tells
    target_ttft: float = _setting(
        0.0, "seconds to the first token; requests within both targets count as good (0: none)"
    )
    target_tpot: float = _setting(0.0, "seconds for each token after the first (0: none)")
    show_text: bool = _setting(
        default=True, text="let `branchline top` and the page show how cached texts begin"
    )
    # How it checks itself
    check_invariants: bool = _setting(
        default=False, text="recount every page after each step (slow)"
    )
    check_syncs: bool = _setting(
        default=False, text="cuda: a launch that waits for the device is an error"
    )

    def __post_init__(self) -> None:
        for name in (
            "max_running",
            "max_batch_tokens",
            "chunk_tokens",
            "overtake_bound",
            "max_waiting",
            "backlog_messages",
            "threads",
        ):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidRequest(f"{name}={value}: must be at least 1")
        if self.device not in DEVICES:
            raise InvalidRequest(f"device={self.device}: must be one of {', '.join(DEVICES)}")
        if self.dtype not in (None, *DTYPES):
            raise InvalidRequest(f"dtype={self.dtype}: must be one of {', '.join(DTYPES)}")
        if self.quantization not in (None, "int8"):
            raise InvalidRequest(f"quantization={self.quantization}: must be int8, or left out")
        if self.quantization is not None and self.device not in ("auto", "cpu"):
            raise InvalidRequest(
                f"quantization={self.quantization}: needs device=cpu, not {self.device}"
            )
        if self.quantization is not None and self.dtype not in (None, "float32"):
            raise InvalidRequest(
                f"quantization={self.quantization}: needs dtype=float32, not {self.dtype}"
            )
        if self.max_batch_tokens < self.max_running:
            raise InvalidRequest(
                f"max_batch_tokens={self.max_batch_tokens}: under max_running={self.max_running}, "
                "every running request needs one token a step"
            )
        for name in ("target_ttft", "target_tpot"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) >= 0):
                raise InvalidRequest(f"{name}={getattr(self, name)}: must be seconds, or 0")
        if self.max_context is not None and self.max_context < MIN_CONTEXT:
            raise InvalidRequest(f"max_context={self.max_context}: must be at least {MIN_CONTEXT}")
        if not 0 < self.memory_fraction <= 1:
            raise InvalidRequest(f"memory_fraction={self.memory_fraction}: must be in (0, 1]")
        if not 0 < self.heartbeat < self.peer_timeout:
            raise InvalidRequest(
                f"heartbeat={self.heartbeat}: must be in (0, peer_timeout={self.peer_timeout})"
            )
        if self.kv_memory is not None:
            parse_bytes(self.kv_memory)


def parse_bytes(text: str) -> int:
    """The number of bytes in `2GiB`, `512MiB` or a plain number. Raises InvalidRequest."""
    number, unit = text, 1
    for suffix, factor in _UNITS.items():
        if text.endswith(suffix):
            number, unit = text.removesuffix(suffix), factor
    try:
        value = int(float(number) * unit)
    except (ValueError, OverflowError):  # no number, or infinitely many
        value = 0
    if value <= 0:
        raise InvalidRequest(
            f"{text!r} is not an amount of memory; write 2GiB, 512MiB or a number of bytes"
        )
    return value
