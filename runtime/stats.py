"""What the loop counts, and how fast it goes."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from branchline.runtime.latency import Latencies
from branchline.runtime_info import RuntimeInfo

if TYPE_CHECKING:
    from branchline.protocol import FailureCode
    from branchline.runtime.batch import Batch
    from branchline.runtime.request import Request
    from branchline.runtime.scheduler import Scheduler

RATE_WINDOW = 10.0  # seconds


@dataclass(slots=True)
class Counters:
    """Counted since the start, by the engine thread."""

    latencies: Latencies = field(default_factory=Latencies)
    started: float = field(default_factory=time.monotonic)
    steps: int = 0
    prompt_tokens: int = 0  # of requests that have finished
    cached_prompt_tokens: int = 0  # of those, found in the tree
    computed_prompt_tokens: int = 0  # launched, after a retraction again
    generated_tokens: int = 0
    forced_tokens: int = 0  # of requests that have ended
    finished: int = 0
    aborted: int = 0  # and otherwise failed
    timed_out: int = 0
    recalled_tokens: int = 0  # of the prompts of requests that have finished
    positions_attended: int = 0
    positions_read: int = 0
    step_seconds: dict[str, float] = field(default_factory=dict)  # by part of a step
    _lap_started: float = 0.0
    _recent: deque[tuple[float, int]] = field(default_factory=deque)  # (time, tokens of a step)

    def launched(self, batch: Batch) -> None:
        """Count a step that was launched."""
        self.steps += 1
        self.positions_attended += batch.positions_attended
        self.positions_read += batch.positions_read
        for row in batch.rows:
            prompt_len = len(row.request.prompt)
            self.computed_prompt_tokens += max(0, min(row.end, prompt_len) - row.start)

    def start_lap(self) -> None:
        """A part of a step begins."""
        self._lap_started = time.perf_counter()

    def lap(self, part: str) -> None:
        """The part that began last has ended, the next begins."""
        now = time.perf_counter()
        taken = now - self._lap_started
        self.step_seconds[part] = self.step_seconds.get(part, 0.0) + taken
        self._lap_started = now

    def generated(self, tokens: int) -> None:
        """Count the tokens that a step brought."""
        now = time.monotonic()
        self.generated_tokens += tokens
        self._recent.append((now, tokens))
        while self._recent[0][0] < now - RATE_WINDOW:
            self._recent.popleft()

    def retired(self, request: Request, failed: FailureCode | None) -> None:
        """Count a request that has ended."""
        finished = failed is None
        self.finished += finished
        self.timed_out += failed == "timeout"
        self.aborted += not finished and failed != "timeout"
        self.latencies.ended(request, finished=finished)
        self.forced_tokens += request.forced_tokens
        if finished:  # of an aborted prompt nobody knows what would have been computed
            self.prompt_tokens += len(request.prompt)
            self.recalled_tokens += request.recalled_tokens
            self.cached_prompt_tokens += len(request.prompt) - request.computed_prompt_tokens

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens per second, over the last seconds in which there were any."""
        now = time.monotonic()
        recent = [(at, tokens) for at, tokens in self._recent if at >= now - RATE_WINDOW]
        return (
            sum(tokens for _, tokens in recent) / max(now - recent[0][0], 1e-3) if recent else 0.0
        )


def runtime_info(model: str, counters: Counters, scheduler: Scheduler) -> RuntimeInfo:
    """What the runtime is doing now."""
    memory = scheduler.memory
    return RuntimeInfo(
        model=model,
        uptime=time.monotonic() - counters.started,
        running=len(scheduler.running),
        waiting=len(scheduler.waiting),
        pages_total=memory.pool.total - 1,
        pages_free=memory.pool.free,
        pages_cached=memory.tree.cached,
        pages_private=memory.private(scheduler.running),
        pages_protected=memory.tree.protected,
        prompt_tokens=counters.prompt_tokens,
        cached_prompt_tokens=counters.cached_prompt_tokens,
        computed_prompt_tokens=counters.computed_prompt_tokens,
        generated_tokens=counters.generated_tokens,
        requests_finished=counters.finished,
        requests_aborted=counters.aborted,
        retractions=scheduler.retractions,
        evicted_pages=memory.evicted,
        steps=counters.steps,
        tokens_per_second=counters.tokens_per_second,
        positions_attended=counters.positions_attended,
        positions_read=counters.positions_read,
        step_seconds=dict(counters.step_seconds),
        forced_tokens=counters.forced_tokens,
        recalled_tokens=counters.recalled_tokens,
        requests_timed_out=counters.timed_out,
        requests_good=counters.latencies.good,
        target_ttft=counters.latencies.target_ttft,
        target_tpot=counters.latencies.target_tpot,
        histograms=counters.latencies.histograms(),
    )
