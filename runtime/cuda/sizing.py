"""What fits a CUDA device: the weights and activations are measured, the rest is pages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from branchline.errors import InvalidRequest
from branchline.runtime.config import parse_bytes
from branchline.runtime.cuda.graphs import BUCKETS
from branchline.runtime.models.inputs import ForwardInputs
from branchline.runtime.sizing import fit

if TYPE_CHECKING:
    from branchline.runtime.config import RuntimeConfig
    from branchline.runtime.cuda.queue import Queue
    from branchline.runtime.models.inputs import Model
    from branchline.runtime.sizing import Limits

GIB = 2**30


@dataclass(frozen=True, slots=True)
class Footprint:
    """A device's memory in bytes, before the pool is made."""

    total: int
    others: int  # in use before the model came: the driver, other processes
    weights: int
    activations: int  # what the largest step takes at its peak, as it comes and captured
    state: int  # the tables, the sampler and the graphs

    def pool(self, fraction: float) -> int:
        """What a fraction of the device leaves for keys and values; negative: not even the rest."""
        used = self.others + self.weights + self.activations + self.state
        return int(self.total * fraction) - used

    def __str__(self) -> str:
        parts = {
            "in use by others": self.others,
            "weights": self.weights,
            "activations": self.activations,
            "state and graphs": self.state,
        }
        listed = ", ".join(f"{name} {size / GIB:.2f}" for name, size in parts.items())
        return f"of {self.total / GIB:.2f} GiB: {listed}"


def size_pool(footprint: Footprint, model: Model, config: RuntimeConfig) -> Limits:
    """The pool and the context that fit.

    Raises:
        InvalidRequest: the model, an explicit kv_memory or an explicit max_context does not fit.
    """
    left = footprint.pool(config.memory_fraction)
    fraction = f"memory_fraction={config.memory_fraction:g}"
    if left < model.page_bytes:
        raise InvalidRequest(
            f"{fraction} leaves {left / GIB:.2f} GiB for keys and values ({footprint}); raise it, "
            "or choose a smaller model, max_running or max_batch_tokens"
        )
    if config.kv_memory is None:
        return fit(left, model, config, f"{fraction} ({footprint})", "memory_fraction")
    asked = parse_bytes(config.kv_memory)
    if asked > left:
        raise InvalidRequest(
            f"kv_memory={config.kv_memory}: {fraction} leaves {left / GIB:.2f} GiB ({footprint})"
        )
    return fit(asked, model, config, f"kv_memory={config.kv_memory}", "kv_memory")


def largest_step(model: Model, tokens: int, logits: int, queue: Queue) -> None:
    """Run a prompt of `tokens` tokens through the model and wait for it; its pool is then gone."""
    device = queue.device
    with queue.launching(checked=False):
        model.allocate(tokens + 1)
        pages = torch.arange(1, tokens + 1, device=device)
        model.forward(
            ForwardInputs(
                input_ids=torch.zeros_like(pages),
                positions=pages - 1,
                write_pages=pages,
                logit_rows=pages[:logits] - 1,
                q_indptr=[0, tokens],
                kv_lens=[tokens],
                page_table=pages.int().unsqueeze(0),
                slots=[0],
            )
        )
    queue.close()


def measure(
    model: Model, config: RuntimeConfig, queue: Queue, free_before: int, state: int
) -> Footprint:
    """Run the largest step and see what it takes.

    Args:
        model: loaded, without a pool.
        config: how large a step may be.
        queue: of a CUDA device.
        free_before: bytes that were free before the model was loaded.
        state: bytes of the tables, the sampler and the graphs.
    """
    device = queue.device
    _, total = torch.cuda.mem_get_info(device)
    weights = torch.cuda.memory_allocated(device)
    tokens = min(config.max_batch_tokens, model.context_length)
    torch.cuda.reset_peak_memory_stats(device)
    largest_step(model, tokens, min(tokens, config.max_running), queue)
    peak = torch.cuda.max_memory_allocated(device)
    model.allocate(1)
    torch.cuda.empty_cache()
    activations = peak - weights - (tokens + 1) * model.page_bytes
    activations += activations * min(tokens, BUCKETS[-1]) // tokens
    return Footprint(total, total - free_before, weights, activations, state)
