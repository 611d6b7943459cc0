"""Prompts without a cache: whole, and in chunks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_stages.record import Row
from gpu_stages.targets import PREFILL
from gpu_stages.timer import Times

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpu_stages.bench import Bench


def run(bench: Bench) -> Iterator[Row]:
    """From request to token, by the clock."""
    for tokens, times in bench.scale.prefill:
        floor, target = PREFILL.get(tokens, (None, None)) if bench.on_device else (None, None)
        whole = _prompts(bench, tokens, times, chunk=tokens)
        note = f"{tokens / whole.median:,.0f} tok/s, {whole.note}"
        note += f", floor {floor} ms" if floor else ""
        yield Row(f"prompt of {tokens}", 1e3 * whole.median, "ms", target, note)
        chunk = bench.scale.prefill_chunk
        if chunk < tokens and not bench.late():
            parts = _prompts(bench, tokens, max(1, times // 2), chunk=chunk)
            note = f"{tokens / parts.median:,.0f} tok/s, {parts.note}"
            yield Row(f"prompt of {tokens} by {chunk}", 1e3 * parts.median, "ms", note=note)


def _prompts(bench: Bench, tokens: int, times: int, *, chunk: int) -> Times:
    """Of that many different prompts, after one that warms up."""
    driver = bench.served.driver(chunk_tokens=chunk)
    seconds = []
    for _ in range(times + 1):
        request = driver.request(driver.tokens(tokens), 1)
        seconds.append(driver.finish([request]))
        if len(seconds) > 1 and bench.late():
            break
    driver.stop()
    return Times.of(seconds[1:])
