"""What the gateway allows: one frozen record, whose defaults are the command line's."""

from __future__ import annotations

from dataclasses import dataclass

MEBIBYTE = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How the gateway treats its clients.

    Raises:
        ValueError: a value is out of range; the message names field, value and rule.
    """

    api_keys: tuple[str, ...] = ()  # any of them opens the gateway; none: no key is asked for
    model_names: tuple[str, ...] = ()  # that the model answers to beside its own
    max_open: int = 4096  # prompts that wait or run for clients of this gateway
    max_body_bytes: int = 32 * MEBIBYTE
    timeout: float | None = None  # seconds that a request may take at most; None: any
    retry_after: int = 1  # seconds that a client is asked to wait when there is too much to do

    def __post_init__(self) -> None:
        if not all(self.api_keys):
            raise ValueError("api_keys holds an empty key, which everybody knows; leave it out")
        for name in ("max_open", "max_body_bytes", "retry_after"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least 1")
        if self.timeout is not None and not self.timeout > 0:
            raise ValueError(f"timeout={self.timeout}: must be above 0")
