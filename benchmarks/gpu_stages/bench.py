"""What stages share: the device, the sizes, what was measured before, the model."""

from __future__ import annotations

import gc
import time
from typing import TYPE_CHECKING

import torch

from gpu_stages.record import NeedsDevice
from gpu_stages.scale import ON_CPU, ON_DEVICE
from gpu_stages.served import Served
from gpu_stages.targets import COPY_BANDWIDTH
from gpu_stages.timer import Timer

if TYPE_CHECKING:
    from gpu_stages.scale import Scale


class Bench:
    """One run's state."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.scale: Scale = ON_DEVICE if device.type == "cuda" else ON_CPU
        self.timer = Timer(device)
        self.copy_bandwidth = COPY_BANDWIDTH  # bytes a second; measured, once that stage has run
        self.until = float("inf")  # the running stage's end
        self._served: Served | None = None

    @property
    def on_device(self) -> bool:
        """Whether there is a device to measure."""
        return self.device.type == "cuda"

    def need_device(self) -> None:
        """Skip the stage where there is none."""
        if not self.on_device:
            raise NeedsDevice("needs a device")

    def late(self) -> bool:
        """Whether the running stage has used up its time."""
        return time.monotonic() > self.until

    @property
    def served(self) -> Served:
        """The large model; made when it is first asked for, and kept."""
        if self._served is None:
            self._served = Served(self.scale.model, self.scale, self.device, self.scale.pages)
        return self._served

    def drop_model(self) -> None:
        """Free the large model's memory."""
        self._served = None
        self.free()

    def free(self) -> None:
        """Give back what nobody holds."""
        gc.collect()
        if self.on_device:
            torch.cuda.empty_cache()

    def percent(self, moved: float, seconds: float) -> float:
        """Bytes in seconds, in percent of the copy bandwidth."""
        return 100 * moved / seconds / self.copy_bandwidth

    def normal(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Normal numbers on the device."""
        return torch.randn(shape, dtype=dtype or self.scale.dtype, device=self.device)
