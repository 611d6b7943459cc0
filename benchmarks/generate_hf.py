"""The same prompts through transformers' `generate`: the peer that everybody has.

usage: python benchmarks/generate_hf.py [single] [batch32] [fewshot64]

A workload is one padded batch. Tokens are those of our tokenizer, so both compute the same.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import torch
from measure import Timings
from transformers import AutoModelForCausalLM, StoppingCriteria, StoppingCriteriaList
from workloads import BATCHES

from branchline.runtime.models.gguf_file import GGUFFile
from branchline.runtime.models.source import resolve
from branchline.runtime.text.tokenizer import Tokenizer


class Clock(StoppingCriteria):
    """Notes when each step of a batch is done; never stops it."""

    def __init__(self) -> None:
        self.steps: list[float] = []

    def __call__(self, input_ids: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        """False for every row: go on."""
        self.steps.append(time.perf_counter())
        return torch.zeros(len(input_ids), dtype=torch.bool)


def padded(rows: list[list[int]]) -> dict[str, torch.Tensor]:
    """The rows as one batch, padded on the left."""
    longest = max(map(len, rows))
    ids = torch.tensor([[0] * (longest - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
    return {"input_ids": ids, "attention_mask": mask}


def warm_up(model: Any, tokenizer: Tokenizer) -> None:
    """The first request pays for what is made lazily, as in serve.py."""
    row = tokenizer.encode((("program", "Hello"),))
    model.generate(**padded([row]), do_sample=False, min_new_tokens=4, max_new_tokens=4)


def measure(model: Any, tokenizer: Tokenizer, workload: str) -> None:
    prompts, tokens = BATCHES[workload]
    rows = [tokenizer.encode((("program", prompt),)) for prompt in prompts()]
    clock = Clock()
    start = time.perf_counter()
    model.generate(
        **padded(rows),
        do_sample=False,
        min_new_tokens=tokens,
        max_new_tokens=tokens,
        stopping_criteria=StoppingCriteriaList([clock]),
    )
    seconds = time.perf_counter() - start
    timings = Timings()
    for _ in rows:
        timings.add(clock.steps[0] - start, clock.steps[-1] - start, tokens)
    print(timings.line(f"transformers {workload}", seconds), flush=True)


def main() -> None:
    wanted = sys.argv[1:] or ["single", "batch32"]
    path = resolve("smollm2")
    tokenizer = Tokenizer.from_gguf(GGUFFile(path))
    model = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    )
    with torch.inference_mode():
        warm_up(model, tokenizer)
        for workload in wanted:
            measure(model, tokenizer, workload)


if __name__ == "__main__":
    main()
