"""Loads a model on the CUDA device, or on its interpreted stand-in, and sizes what it runs in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from branchline.errors import InvalidRequest, ModelError
from branchline.kernels.triton.attention import geometry_of
from branchline.kernels.triton.device import triton_kernels
from branchline.kernels.triton.launch import INTERPRETED
from branchline.kernels.triton.plan_layout import Capacity
from branchline.kernels.triton.tile_shapes import Heads
from branchline.runtime.cuda.build import build_runner
from branchline.runtime.cuda.graphs import BUCKETS, CudaGraphs, RecordedGraphs, draws_for
from branchline.runtime.cuda.plans import TilePlanner
from branchline.runtime.cuda.queue import CudaQueue, HostQueue
from branchline.runtime.cuda.sizing import measure, size_pool
from branchline.runtime.sampling.device import DeviceSampler, Mode
from branchline.runtime.sizing import size_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from branchline.runtime.config import RuntimeConfig
    from branchline.runtime.cuda.graphs import Graphs
    from branchline.runtime.cuda.queue import Queue
    from branchline.runtime.cuda.runner import CudaRunner
    from branchline.runtime.cuda.tables import Tables
    from branchline.runtime.models.decoder import Decoder
    from branchline.runtime.models.load import Loaded
    from branchline.runtime.sizing import Limits

    Load = Callable[..., Loaded]

# What is captured; a step takes the first that can do all it needs.
MODES = (
    Mode(),
    Mode(draws=True),
    Mode(draws=True, cuts=True),
    Mode(draws=True, cuts=True, adjusts=True),
)
SMALLEST_HEAD = 16  # a tensor core's
_GRAPH_BYTES = 4 * 2**20  # of one graph, beside the memory that all of them share
# For each draw and token of the vocabulary: logits, and the sampler's scores, marks, biases,
# distances and ids.
_STATE_WORDS = 6
_BLOCK_WORDS = 3200  # for each draw, what the sampler knows of blocks of the vocabulary


def start(config: RuntimeConfig, *, interpreted: bool) -> tuple[Loaded, Limits, CudaRunner]:
    """Everything that a loop on the device needs.

    Raises:
        ModelError: the model cannot be loaded.
        InvalidRequest: there is no such device, or something does not fit it.
    """
    # The readers of models need packages that a runner of one in memory does without.
    from branchline.runtime.models.load import load

    return _start_interpreted(config, load) if interpreted else _start_cuda(config, load)


def _start_cuda(config: RuntimeConfig, load: Load) -> tuple[Loaded, Limits, CudaRunner]:
    if not torch.cuda.is_available():
        raise InvalidRequest("device=cuda: torch sees no CUDA device here; `branchline doctor`")
    if INTERPRETED:
        raise InvalidRequest("device=cuda: TRITON_INTERPRET=1 is set, for the interpreter")
    device = torch.device("cuda", torch.cuda.current_device())
    queue = CudaQueue(device, check_syncs=config.check_syncs)
    free_before, _ = torch.cuda.mem_get_info(device)
    dtype = getattr(torch, config.dtype or "bfloat16")
    loaded = load(config.model, kernels=triton_kernels(device), dtype=dtype)
    state = state_bytes(loaded.model, config, device)
    footprint = measure(loaded.model, config, queue, free_before, state)
    limits = size_pool(footprint, loaded.model, config)
    return loaded, limits, triton_runner(loaded.model, config, limits, queue, CudaGraphs())


def _start_interpreted(config: RuntimeConfig, load: Load) -> tuple[Loaded, Limits, CudaRunner]:
    if not INTERPRETED:
        raise InvalidRequest("device=cuda-interpreted: needs TRITON_INTERPRET=1 in the environment")
    queue = HostQueue(check_syncs=config.check_syncs)
    dtype = getattr(torch, config.dtype or "float32")
    loaded = load(config.model, kernels=triton_kernels(queue.device), dtype=dtype)
    limits = size_memory(loaded.model, config)
    return loaded, limits, triton_runner(loaded.model, config, limits, queue, RecordedGraphs())


def triton_runner(
    model: Decoder,
    config: RuntimeConfig,
    limits: Limits,
    queue: Queue,
    graphs: Graphs,
    buckets: Sequence[int] = BUCKETS,
) -> CudaRunner:
    """The runner of a model that was loaded with Triton's kernels."""

    def planner(tables: Tables) -> TilePlanner:
        return TilePlanner(heads_of(model), tables.page_table, tables.most_tokens)

    def sampler(tables: Tables) -> DeviceSampler:
        last = tables.last_token
        # A captured draw may have more rows than there are slots: it is padded.
        rows = draws_for(config.max_running, config.max_batch_tokens, buckets)
        return DeviceSampler(len(last), model.vocab_size, last.device, last, rows=rows)

    return build_runner(
        model, config, limits, queue, graphs, planner, sampler, modes=MODES, buckets=buckets
    )


def heads_of(model: Decoder) -> Heads:
    """What attention's tiles are made for; ModelError where there are no such tiles."""
    shape, size = model.config, model.config.head_dim
    if size < SMALLEST_HEAD or size & (size - 1):
        raise ModelError(
            f"a head size of {size}: the CUDA kernels take powers of two from {SMALLEST_HEAD} on; "
            "serve the model with --device cpu"
        )
    return Heads(shape.kv_heads, shape.heads // shape.kv_heads, size, model.dtype)


def state_bytes(model: Decoder, config: RuntimeConfig, device: torch.device) -> int:
    """About what the tables, the plan, the sampler, the logits and the graphs take."""
    tokens = max(config.max_batch_tokens, BUCKETS[-1])
    draws = max(config.max_running + 1, draws_for(config.max_running, tokens))
    words = draws * (_STATE_WORDS * model.vocab_size + _BLOCK_WORDS + model.context_length)
    heads = heads_of(model)
    capacity = Capacity.of(tokens, geometry_of(heads, device))
    words += capacity.part_rows * heads.kv_heads * heads.group * (heads.size + 1)
    return 4 * words + _GRAPH_BYTES * len(BUCKETS) * (1 + len(MODES))
