"""Is the model right: logits of the captured step against plain torch, shared and not."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from branchline.kernels import reference, reference_kernels
from branchline.runtime.models.inputs import ForwardInputs
from gpu_stages.cases import error
from gpu_stages.record import Row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from branchline.kernels import KernelSet
    from branchline.runtime.batch import Batch
    from branchline.runtime.runner import Forward, Runner
    from gpu_stages.bench import Bench
    from gpu_stages.served import Served

# bfloat16 twice through 32 layers, rounded at other places; float32 in two layers.
MOST = {torch.bfloat16: 0.05, torch.float32: 1e-4}
PROMPTS = 3
STEPS = 3


class Watched:
    """A runner that keeps the logits of every row of every step."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.logits: dict[tuple[Any, int], Tensor] = {}  # by request and position

    def forward(self, batch: Batch) -> Forward:
        """The runner's."""
        forward = self._runner.forward(batch)
        with self._runner._queue.launching(checked=False):  # type: ignore[attr-defined]
            logits = forward.logits.result().clone()
        rows = [row for row in batch.rows if row.samples]
        self.logits |= {(row.request, row.end): one for row, one in zip(rows, logits, strict=True)}
        return forward

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)


def run(bench: Bench) -> Iterator[Row]:
    """Prompts below a shared prefix and the steps after them, sharing its reads and not."""
    served, most = bench.served, MOST[bench.scale.dtype]
    yield Row("captures", served.capture_seconds, "s")
    first: list[Tensor] = []
    for cascade in (True, False):
        found = _outputs(served, cascade=cascade)
        name = "shared" if cascade else "each for itself"
        for number, (logits, tokens) in enumerate(found):
            right = _plain(served, tokens, STEPS)
            title = f"prompt {number}, {name}: logits of {STEPS} steps"
            yield Row(title, error(logits, right), "error", most)
        first.append(torch.stack([logits[0] for logits, _ in found]))
    yield Row("shared against each for itself", error(*first), "error", most)


def _outputs(served: Served, *, cascade: bool) -> list[tuple[Tensor, list[int]]]:
    """Of each prompt the logits [STEPS, V], and the tokens that the last of them follows."""
    watched = Watched(served.runner)
    driver = served.driver(runner=watched, cascade=cascade)
    prefix = driver.tokens(served.scale.hit[0] // 8 + 1)
    prompts = [prefix + driver.tokens(2 + number) for number in range(PROMPTS)]
    driver.finish([driver.request(prefix, 1)])
    requests = [driver.request(prompt, STEPS) for prompt in prompts]
    driver.finish(requests)
    driver.stop()
    served.queue.close()
    return [
        (
            torch.stack([watched.logits[request, len(prompt) + step] for step in range(STEPS)]),
            prompt + request.output[:-1],
        )
        for request, prompt in zip(requests, prompts, strict=True)
    ]


def _in_float32(device: torch.device) -> KernelSet:
    """The reference, rounded to the model's type between operations, as transformers does."""
    kernels = reference_kernels(device)

    def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return reference.rms_norm(x.float(), weight.float(), eps).to(x.dtype)

    def add_rms_norm(
        x: Tensor, residual: Tensor, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        total = x + residual
        return rms_norm(total, weight, eps), total

    def attention(q: Tensor, k: Tensor, v: Tensor, plan: Any, scale: float) -> Tensor:
        return reference.attention(q.float(), k.float(), v.float(), plan, scale).to(q.dtype)

    return replace(kernels, rms_norm=rms_norm, add_rms_norm=add_rms_norm, attention=attention)


def _plain(served: Served, tokens: list[int], count: int) -> Tensor:
    """The last `count` logits of a sequence, by plain torch over the same weights."""
    model = copy.copy(served.model)
    device = served.model._kernels.device
    model._kernels = _in_float32(device)
    with served.queue.launching(checked=False):
        model.allocate(len(tokens) + 1)
        pages = torch.arange(1, len(tokens) + 1, device=device)
        logits = model.forward(
            ForwardInputs(
                input_ids=torch.tensor(tokens, device=device),
                positions=pages - 1,
                write_pages=pages,
                logit_rows=pages[-count:] - 1,
                q_indptr=[0, len(tokens)],
                kv_lens=[len(tokens)],
                page_table=pages.unsqueeze(0),
                slots=[0],
            )
        )
    served.queue.close()
    return logits
