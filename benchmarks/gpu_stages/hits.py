"""Prefix hits: from a request whose prompt is cached but for its end, to its first token."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_stages.record import Row
from gpu_stages.targets import PREFIX_HIT_DEVICE, PREFIX_HIT_WALL
from gpu_stages.timer import Times

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpu_stages.bench import Bench
    from gpu_stages.served import Driver

_WARM = 2  # hits before those that are timed


def run(bench: Bench) -> Iterator[Row]:
    """Alone, and while other requests decode."""
    cached, new, times = bench.scale.hit
    served = bench.served
    driver = served.driver()
    found = Times.of(_hits(driver, cached, new, times))
    driver.stop()
    with served.queue.launching(checked=False):
        device = bench.timer.work(served.replays(new, 1)).median
    served.queue.close()
    goal = (PREFIX_HIT_WALL, PREFIX_HIT_DEVICE) if bench.on_device else (None, None)
    note = f"p90 {1e3 * found.high:.2f} ms"
    yield Row(
        f"{new} new after {cached}: request to token", 1e3 * found.median, "ms", goal[0], note
    )
    yield Row(f"{new} new after {cached}: its graphs", 1e3 * device, "ms", goal[1])

    rows, context = bench.scale.beside
    driver = served.driver()
    for _ in range(rows):
        prompt = driver.tokens(context)
        driver.plant(prompt[:-1])
        driver.request(prompt, min(4096, served.limits.max_context - context))
    driver.step(4)
    found = Times.of(_hits(driver, cached, new, times))
    driver.stop()
    note = f"p90 {1e3 * found.high:.2f} ms"
    yield Row(f"the same beside {rows} decodes", 1e3 * found.median, "ms", note=note)


def _hits(driver: Driver, cached: int, new: int, times: int) -> list[float]:
    """Seconds of each."""
    prefix = driver.tokens(cached)
    driver.plant(prefix)
    seconds = []
    for _ in range(_WARM + times):
        prompt = prefix + driver.tokens(new)
        seconds.append(driver.finish([driver.request(prompt, 1)]))
    return seconds[_WARM:]
