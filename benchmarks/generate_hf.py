"""The same prompts through transformers' `generate`: the peer that everybody has.

usage: python benchmarks/generate_hf.py [single] [batch32] [fewshot64] [--json FILE]

A workload is one padded batch, in float32. Tokens are those of our tokenizer, so both compute the
same. There is no cache to be cold or warm.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from measure import Result, Stopwatch, Timings
from report import details, machine, write_json
from transformers import (
    AutoModelForCausalLM,
    GgufConfig,
    StoppingCriteria,
    StoppingCriteriaList,
)
from workloads import BATCHES

from branchline.runtime.models.gguf_file import GGUFFile
from branchline.runtime.models.source import resolve
from branchline.runtime.text.tokenizer import Tokenizer


class Clock(StoppingCriteria):  # type: ignore[misc] # transformers is not typed
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


def generate(model: Any, rows: list[list[int]], tokens: int) -> Clock:
    clock = Clock()
    model.generate(
        **padded(rows),
        do_sample=False,
        min_new_tokens=tokens,
        max_new_tokens=tokens,
        stopping_criteria=StoppingCriteriaList([clock]),
    )
    return clock


def measure(model: Any, tokenizer: Tokenizer, workload: str) -> Result:
    prompts, tokens = BATCHES[workload]
    rows = [tokenizer.encode((("program", prompt),)) for prompt in prompts()]
    watch, start = Stopwatch(), time.perf_counter()
    steps = generate(model, rows, tokens).steps
    timings = Timings()
    for _ in rows:
        timings.add(steps[0] - start, steps[-1] - start, tokens)
    return watch.result(workload, timings)


def main() -> None:
    parser = argparse.ArgumentParser(description="Run batches through transformers' generate.")
    parser.add_argument("workloads", nargs="*", choices=[*BATCHES, []], metavar="WORKLOAD")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to a file")
    arguments = parser.parse_args()
    source = resolve("smollm2")
    tokenizer = Tokenizer.from_gguf(GGUFFile(source))
    model = AutoModelForCausalLM.from_pretrained(
        source.parent,
        gguf_file=source.name,
        dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),
    )
    with torch.inference_mode():
        # The first request pays for what is made lazily, as in serve.py.
        generate(model, [tokenizer.encode((("program", "Hello"),))], tokens=4)
        names = arguments.workloads or ["single", "batch32"]
        results = {name: measure(model, tokenizer, name) for name in names}
    print(details(list(results.values())))
    if arguments.json:
        runs = {name: [result.as_json()] for name, result in results.items()}
        write_json(arguments.json, {"machine": machine(), "results": runs})


if __name__ == "__main__":
    main()
