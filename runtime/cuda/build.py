"""A runner put together: tables, plans, graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from branchline.runtime.cuda.draws import Draws
from branchline.runtime.cuda.forward import Forwards
from branchline.runtime.cuda.graphs import BUCKETS, buckets_for, draws_for
from branchline.runtime.cuda.runner import CudaRunner
from branchline.runtime.cuda.tables import Tables

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from branchline.runtime.config import RuntimeConfig
    from branchline.runtime.cuda.draws import Sampler
    from branchline.runtime.cuda.graphs import Graphs
    from branchline.runtime.cuda.plans import Planner
    from branchline.runtime.cuda.queue import Queue
    from branchline.runtime.models.inputs import PlannedModel
    from branchline.runtime.sizing import Limits


def build_runner(
    model: PlannedModel,
    config: RuntimeConfig,
    limits: Limits,
    queue: Queue,
    graphs: Graphs,
    planner_of: Callable[[Tables], Planner],
    sampler_of: Callable[[Tables], Sampler],
    *,
    modes: Sequence[Any],
    buckets: Sequence[int] = BUCKETS,
) -> CudaRunner:
    """Allocate the model's pool and everything that stays in place, then capture.

    Args:
        model: on the queue's device.
        config: how many requests run and how many tokens a step has.
        limits: the pool and the context.
        queue: of the device.
        graphs: captures its work.
        planner_of: makes the planner of attention over the tables' pages.
        sampler_of: makes the sampler that writes the tables' last tokens.
        modes: of the sampler, to be captured, those that do less first.
        buckets: the sizes to be captured, as far as steps need them.
    """
    sizes = buckets_for(config.max_batch_tokens, buckets)
    draws = draws_for(config.max_running, config.max_batch_tokens, buckets)
    tokens = max(config.max_batch_tokens, sizes[-1])
    with queue.launching(checked=False):
        model.allocate(limits.pages)
        tables = Tables(config.max_running, limits.max_context, tokens, queue.device)
        planner = planner_of(tables)
        forwards = Forwards(model, tables, planner, draws=draws)
        drawing = Draws(sampler_of(tables), tables, forwards.drawn)
        forwards.capture(graphs, sizes)
        drawing.capture(graphs, [size for size in sizes if size <= draws], modes)
    return CudaRunner(queue, tables, planner, forwards, drawing)
