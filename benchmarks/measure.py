"""What a workload took: a backend that times what passes through it, and the record of a run."""

from __future__ import annotations

import json
import os
import statistics
import time
from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from branchline.backend import Backend
    from branchline.protocol import Generate, Score, Scored, Update


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One run of a workload. None: the engine does not tell, or nobody was asked for it."""

    workload: str
    seconds: float
    requests: int
    tokens: int  # generated
    tokens_per_second: float
    ttft_p50: float  # seconds to the first token, for a scored request to the answer
    ttft_p99: float
    tpot_p50: float | None  # seconds a token, after the first
    tpot_p99: float | None
    load_before: float  # the machine's load average over one minute
    load_after: float
    prompt_tokens: int | None = None
    saved_tokens: int | None = None  # of those, found in a cache
    computed_tokens: int | None = None  # the others, and what had to be computed twice
    hit_rate: float | None = None
    steps: int | None = None  # forward passes
    host_seconds: float | None = None  # a step, without the wait for the device
    step_seconds: dict[str, float] | None = None  # a step, by part of the loop
    read_share: float | None = None  # of the positions attended to: what is shared is read once

    def with_prompts(self, total: int, saved: int, computed: int) -> Result:
        """This, with what became of the tokens of all prompts."""
        return replace(
            self,
            prompt_tokens=total,
            saved_tokens=saved,
            computed_tokens=computed,
            hit_rate=saved / max(1, total),
        )

    def line(self) -> str:
        """The run as one line of JSON, as load generators print it: seconds, and milliseconds."""
        fields: dict[str, Any] = {
            "workload": self.workload,
            "seconds": round(self.seconds, 2),
            "requests": self.requests,
            "out_tok": self.tokens,
            "out_tok_s": round(self.tokens_per_second, 1),
            "req_s": round(self.requests / self.seconds, 2),
            "ttft_p50": round(self.ttft_p50, 3),
            "ttft_p99": round(self.ttft_p99, 3),
        }
        if self.tpot_p50 is not None and self.tpot_p99 is not None:
            fields["tpot_p50_ms"] = round(1e3 * self.tpot_p50, 1)
            fields["tpot_p99_ms"] = round(1e3 * self.tpot_p99, 1)
        return json.dumps(fields)

    def as_json(self) -> dict[str, Any]:
        """The fields, with no more digits than mean something."""
        return {name: _rounded(value) for name, value in asdict(self).items()}


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(part) for name, part in value.items()}
    return round(value, 6) if isinstance(value, float) else value


@dataclass
class Timings:
    """What the requests of a workload took, one entry a text; seconds."""

    first_token: list[float] = field(default_factory=list)
    per_token: list[float] = field(default_factory=list)  # after the first
    tokens: int = 0

    def add(self, first_token: float, whole: float, tokens: int) -> None:
        """Enter one text."""
        self.first_token.append(first_token)
        self.tokens += tokens
        if tokens > 1:
            self.per_token.append((whole - first_token) / (tokens - 1))


class Stopwatch:
    """Runs from its making to its `result`."""

    def __init__(self) -> None:
        self._load = load_average()
        self._start = time.perf_counter()

    def result(self, workload: str, timings: Timings) -> Result:
        """The record of the workload that ends now."""
        seconds = time.perf_counter() - self._start
        return Result(
            workload=workload,
            seconds=seconds,
            requests=len(timings.first_token),
            tokens=timings.tokens,
            tokens_per_second=timings.tokens / seconds,
            ttft_p50=percentile(timings.first_token, 0.50),
            ttft_p99=percentile(timings.first_token, 0.99),
            tpot_p50=percentile(timings.per_token, 0.50) if timings.per_token else None,
            tpot_p99=percentile(timings.per_token, 0.99) if timings.per_token else None,
            load_before=self._load,
            load_after=load_average(),
        )


def load_average() -> float:
    """How many processes wanted a core, over the last minute."""
    return os.getloadavg()[0]


def percentile(values: Sequence[float], fraction: float) -> float:
    """The value below which `fraction` of the values lie, without interpolation."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(fraction * len(ordered)))]


def median(results: Sequence[Result]) -> Result:
    """The median of each field over runs of one workload."""
    runs = [asdict(result) for result in results]
    middle = {name: _middle([run[name] for run in runs]) for name in runs[0] if name != "workload"}
    return Result(workload=results[0].workload, **middle)


def _middle(values: Sequence[Any]) -> Any:
    if values[0] is None:
        return None
    if isinstance(values[0], dict):
        return {part: _middle([value[part] for value in values]) for part in values[0]}
    return statistics.median(values)


class Timed:
    """A backend that passes everything on to `inner` and times each text and each score.

    It asks every generation to stream, so that its first token shows.
    """

    def __init__(self, inner: Backend) -> None:
        self._inner = inner
        self.timings = Timings()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def generate(self, request: Generate) -> AsyncIterator[Update]:
        """The inner backend's updates; each choice is entered in `timings` as it ends."""
        start = time.perf_counter()
        first: dict[int, float] = {}
        tokens: Counter[int] = Counter()
        async for update in self._inner.generate(replace(request, stream=True)):
            now = time.perf_counter() - start
            choice = update.index
            first.setdefault(choice, now)
            tokens[choice] += len(update.ids)
            if update.finish is not None:
                self.timings.add(first[choice], now, tokens[choice])
            yield update

    async def score(self, request: Score) -> Scored:
        """The inner backend's answer."""
        start = time.perf_counter()
        scored = await self._inner.score(request)
        seconds = time.perf_counter() - start
        self.timings.add(seconds, seconds, tokens=0)
        return scored
