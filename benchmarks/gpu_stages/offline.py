"""The workload that small engines publish: many requests at once, lengths drawn evenly."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

from gpu_stages.record import Row
from gpu_stages.served import Served

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpu_stages.bench import Bench


def run(bench: Bench) -> Iterator[Row]:
    """Tokens a second of the small model; of as much as the time allowed."""
    bench.drop_model()
    scale = bench.scale
    served = Served(scale.small_model, scale, bench.device, scale.small_pages)
    yield Row("captures", served.capture_seconds, "s")
    count, low, high = scale.offline
    driver = served.driver(chunk_tokens=high)
    lengths = random.Random(0)
    requests = [
        driver.request(
            driver.tokens(lengths.randint(low, high)), lengths.randint(low, high), temperature=0.6
        )
        for _ in range(count)
    ]
    start = time.perf_counter()
    while len(driver.ended) < count and not bench.late():
        driver.step()
    seconds = time.perf_counter() - start
    generated = sum(request.output_len for request in requests)
    note = f"{generated} tokens, {len(driver.ended)} of {count} requests, {seconds:.2f} s"
    driver.stop()
    yield Row(f"{count} requests, {low}-{high} in and out", generated / seconds, "tok/s", note=note)
