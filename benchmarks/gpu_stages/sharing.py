"""What is shared read once, against each row for itself, in turn; forks; choices in one pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_stages.record import Row
from gpu_stages.targets import SELECT_TWO_PASSES, SHARED
from gpu_stages.timer import Times

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpu_stages.bench import Bench
    from gpu_stages.served import Driver

ROUNDS = 2


def run(bench: Bench) -> Iterator[Row]:
    """Steps of decodes below a prefix, forks of several prompts, choices after one."""
    for rows, shared, own in bench.scale.shared:
        yield from _compared(bench, [(shared, rows)], own, SHARED.get((rows, shared, own)))
    prompts, ways, context = bench.scale.fork
    yield from _compared(bench, [(context, ways)] * prompts, 1, None)
    yield from _select(bench, *bench.scale.select)


def _compared(
    bench: Bench, groups: list[tuple[int, int]], own: int, target: float | None
) -> Iterator[Row]:
    """Groups of requests below a prefix of their own: positions, requests."""
    shared, apart = [], []
    for _ in range(ROUNDS if bench.on_device else 1):
        shared.append(_step(bench, groups, own, cascade=True))
        apart.append(_step(bench, groups, own, cascade=False))
    (prefix, rows), several = groups[0], f"{len(groups)} × " if len(groups) > 1 else ""
    note = f"a step {_listed(shared)} ms, unshared {_listed(apart)} ms"
    name = f"{several}{rows} below {prefix}, {own} own"
    ratio = sum(apart) / sum(shared)
    yield Row(name, ratio, "x", target if bench.on_device else None, note)


def _listed(seconds: list[float]) -> str:
    return "/".join(f"{1e3 * one:.2f}" for one in seconds)


def _step(bench: Bench, groups: list[tuple[int, int]], own: int, *, cascade: bool) -> float:
    """Seconds of a step while the rows' own parts are about as long as asked for."""
    scale = bench.scale
    driver = bench.served.driver(cascade=cascade)
    length = scale.warm + scale.timed
    for shared, rows in groups:
        prefix = driver.tokens(shared)
        driver.plant(prefix)
        for _ in range(rows):
            prompt = prefix + driver.tokens(max(1, own - length // 2))
            driver.plant(prompt[:-1])
            driver.request(prompt, length + 8)
    step = driver.steps(scale.warm, scale.timed)
    driver.stop()
    return step


def _select(bench: Bench, choices: int, tokens: int, context: int) -> Iterator[Row]:
    """All choices of a select scored in one forward, below a cached prompt."""
    driver = bench.served.driver()
    prompt = driver.tokens(context)
    driver.plant(prompt)
    times = 6 if bench.on_device else 2
    seconds = [_score(driver, prompt, choices, tokens) for _ in range(times)]
    driver.stop()
    found = Times.of(seconds[1:])
    target = SELECT_TWO_PASSES if bench.on_device else None
    name = f"{choices} choices of {tokens} after {context}"
    yield Row(name, 1e3 * found.median, "ms", target, "the target: the floor of two passes")


def _score(driver: Driver, prompt: list[int], choices: int, tokens: int) -> float:
    requests = [
        driver.request(prompt + driver.tokens(tokens), 0, logprob_start=len(prompt))
        for _ in range(choices)
    ]
    return driver.finish(requests)
