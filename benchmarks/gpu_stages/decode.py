"""The decode table: one step of the whole engine, and what of it is the device's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_stages.record import Row
from gpu_stages.targets import DECODE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpu_stages.bench import Bench


def run(bench: Bench) -> Iterator[Row]:
    """Rows × positions: ms of a step by the clock, ms of its graphs, tokens a second."""
    for rows, context in bench.scale.decode:
        yield from _cell(bench, rows, context)


def _cell(bench: Bench, rows: int, context: int) -> Iterator[Row]:
    served, scale = bench.served, bench.scale
    driver = served.driver()
    for _ in range(rows):
        prompt = driver.tokens(context)
        driver.plant(prompt[:-1])
        driver.request(prompt, scale.warm + scale.timed + 8)
    step = driver.steps(scale.warm, scale.timed)
    parts = driver.loop.counters.step_seconds
    host = sum(seconds for part, seconds in parts.items() if part != "wait")
    host /= driver.loop.counters.steps
    driver.stop()
    with served.queue.launching(checked=False):
        device = bench.timer.work(served.replays(rows, rows), scale.timed).median
    served.queue.close()
    floor, target = DECODE.get((rows, context), (None, None)) if bench.on_device else (None, None)
    name = f"{rows} × {context}"
    note = f"floor {floor} ms; host {1e3 * host:.2f} ms a step" if floor else ""
    yield Row(f"{name}: a step", 1e3 * step, "ms", target, note)
    note = f"not hidden: {1e3 * (step - device):.2f} ms"
    yield Row(f"{name}: its graphs", 1e3 * device, "ms", note=note)
    rate = round(1e3 * rows / target, -1 if rows > 1 else 0) if target else None
    yield Row(f"{name}: tokens", rows / step, "tok/s", rate)
