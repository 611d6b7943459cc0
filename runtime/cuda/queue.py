"""The device's queue of work as the engine thread sees it, and its stand-in on the CPU."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

from branchline.runtime.cuda.guard import refuse_syncs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager

    from torch import Tensor


class Event(Protocol):
    """A point in the queue."""

    def synchronize(self) -> None:
        """Let the host wait until the device has come to it."""


class Queue(Protocol):
    """Runs launched work in order; copies to the host go beside it."""

    device: torch.device

    def launching(self, *, checked: bool = True) -> AbstractContextManager[None]:
        """Where work is launched; on any thread, but one at a time.

        Where it is `checked`, and syncs are, whatever waits for the device is an error.
        """

    def host_words(self, count: int) -> tuple[Tensor, np.ndarray]:
        """Int32 [count] on the host that the device copies from by itself, seen in two ways."""

    def record(self) -> Event:
        """The point after all that is launched."""

    def fetch(self, sources: Sequence[Tensor]) -> tuple[list[Tensor], Event]:
        """Copy tensors to the host beside the work that follows; valid after the event.

        The sources must stay as they are until then: see `after`.
        """

    def after(self, event: Event) -> None:
        """Let work that is launched from now on wait for the event."""

    def close(self) -> None:
        """Wait for the device."""


class CudaQueue:
    """One stream of compute and one for what is copied back."""

    def __init__(self, device: torch.device, *, check_syncs: bool = False) -> None:
        self.device = device
        self._compute = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._copies = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._check_syncs = check_syncs

    @contextmanager
    def launching(self, *, checked: bool = True) -> Iterator[None]:
        """See `Queue.launching`."""
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode())
            stack.enter_context(torch.cuda.device(self.device))
            stack.enter_context(torch.cuda.stream(self._compute))
            if checked and self._check_syncs:
                stack.callback(torch.cuda.set_sync_debug_mode, torch.cuda.get_sync_debug_mode())
                torch.cuda.set_sync_debug_mode("error")
            yield

    def host_words(self, count: int) -> tuple[Tensor, np.ndarray]:
        """See `Queue.host_words`."""
        buffer = torch.empty(count, dtype=torch.int32, pin_memory=True)
        return buffer, buffer.numpy()

    def record(self) -> torch.cuda.Event:
        """See `Queue.record`."""
        event: torch.cuda.Event = self._compute.record_event()
        return event

    def fetch(self, sources: Sequence[Tensor]) -> tuple[list[Tensor], Event]:
        """See `Queue.fetch`."""
        self._copies.wait_event(self.record())
        # Torch keeps a pinned buffer that was copied to until the copy is done, then reuses it.
        copies = [
            torch.empty(source.shape, dtype=source.dtype, pin_memory=True) for source in sources
        ]
        with torch.cuda.stream(self._copies):
            for copy, source in zip(copies, sources, strict=True):
                copy.copy_(source, non_blocking=True)
        return copies, self._copies.record_event()

    def after(self, event: Event) -> None:
        """See `Queue.after`."""
        assert isinstance(event, torch.cuda.Event)
        self._compute.wait_event(event)

    def close(self) -> None:
        """See `Queue.close`."""
        self._compute.synchronize()
        self._copies.synchronize()


class Done:
    """The event of a device that does everything at once."""

    def synchronize(self) -> None:
        """Nothing to wait for."""


class HostQueue:
    """Runs work on CPU tensors at once: for Triton's interpreter, and for tests."""

    def __init__(self, *, check_syncs: bool = False) -> None:
        self.device = torch.device("cpu")
        self._check_syncs = check_syncs

    @contextmanager
    def launching(self, *, checked: bool = True) -> Iterator[None]:
        """See `Queue.launching`."""
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode())
            if checked and self._check_syncs:
                stack.enter_context(refuse_syncs())
            yield

    def host_words(self, count: int) -> tuple[Tensor, np.ndarray]:
        """See `Queue.host_words`."""
        words = np.empty(count, dtype=np.int32)
        return torch.from_numpy(words), words

    def record(self) -> Done:
        """See `Queue.record`."""
        return Done()

    def fetch(self, sources: Sequence[Tensor]) -> tuple[list[Tensor], Event]:
        """See `Queue.fetch`."""
        return [source.clone() for source in sources], Done()

    def after(self, event: Event) -> None:
        """See `Queue.after`."""

    def close(self) -> None:
        """See `Queue.close`."""
