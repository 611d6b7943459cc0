"""Time the policy: what a step spends on who is next, by the number of requests that wait.

usage: python benchmarks/policy.py

In each step 4 requests finish, 4 are admitted and publish their prompts, 4 arrive, and pages are
evicted all the time. Prompts have 1,000 tokens: all their own, or 900 shared by one of 10 families.
`full` is a step in which nobody fits, so that the most are tried. Times are the queue's alone, as
processor time of the thread, so that a busy machine does not show, and without Python's collector,
whose pauses grow with all objects of a process.
"""

from __future__ import annotations

import gc
import json
import os
import random
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np
from measure import percentile

from branchline.runtime.memory import Memory
from branchline.runtime.policy import WaitingQueue
from branchline.runtime.request import Request
from branchline.sampling_params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable

WAITING = (100, 1_000, 10_000)
STEPS = 300
PER_STEP = 4
SLOTS = 32
PROMPT, SHARED, OUTPUT, FAMILIES = 1_000, 900, 16, 10
PAGES = 50_000  # more than can run, fewer than pass through
BOUND = 1 << 30  # the longest match decides every time, never the bound


class Stopwatch:
    """A waiting queue, and the seconds spent in it."""

    def __init__(self, queue: WaitingQueue) -> None:
        self.seconds = 0.0
        self._queue = queue

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._queue, name)

        def timed(*args: Any) -> Any:
            start = time.thread_time()
            result = method(*args)
            self.seconds += time.thread_time() - start
            return result

        return timed

    def lap(self) -> float:
        """The seconds since the last lap."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds


class Traffic:
    """A steady number of waiting requests, without a model."""

    def __init__(self, waiting: int, *, shared: bool) -> None:
        self.memory = Memory(PAGES, SLOTS, PROMPT + OUTPUT)
        self.queue = Stopwatch(WaitingQueue(self.memory.peek, BOUND))
        self.memory.on_publish = self.queue.publish
        self._running: deque[Request] = deque()
        self._random = np.random.default_rng(waiting)
        self._families = [self._draw(SHARED if shared else 0) for _ in range(FAMILIES)]
        for _ in range(waiting):
            self._arrive()
        self.adding = self.queue.lap() / waiting

    def _draw(self, count: int) -> list[int]:
        tokens: list[int] = self._random.integers(0, 50_000, count).tolist()
        return tokens

    def _arrive(self) -> None:
        prompt = list(random.choice(self._families))
        prompt += self._draw(PROMPT - len(prompt))
        params = SamplingParams(max_tokens=OUTPUT)
        self.queue.add(Request(prompt=prompt, params=params, seed=0, text=None))

    def _finish(self) -> None:
        request = self._running.popleft()
        *tokens, last = self._draw(OUTPUT)
        for token in tokens:  # as they are drawn: what is known already gets no page
            self.memory.grow([request])
            request.tokens.append(token)
            request.computed += 1
        request.tokens.append(last)
        self.memory.release(request)

    def _admit(self, needed: int) -> bool:
        request, _ = self.queue.head()
        if not self.memory.admit(request, needed):
            return bool(self.queue.pass_over(request))
        self.queue.admitted(request)
        self.memory.extend(request, PROMPT)
        request.computed = PROMPT
        self._running.append(request)
        return True

    def step(self) -> float:
        """Seconds of one step."""
        while len(self._running) > SLOTS - PER_STEP:
            self._finish()
        for _ in range(PER_STEP):
            self._admit(PROMPT + OUTPUT)
            self._arrive()
        self.queue.rejoin()
        self.memory.take_patches()
        return self.queue.lap()

    def full_step(self) -> float:
        """Seconds of a step in which nobody fits."""
        while self._admit(PAGES):
            pass
        self.queue.rejoin()
        return self.queue.lap()


def line(waiting: int, *, shared: bool) -> str:
    traffic = Traffic(waiting, shared=shared)
    for _ in range(STEPS // 4):
        traffic.step()
    steps = [traffic.step() for _ in range(STEPS)]
    full = [traffic.full_step() for _ in range(STEPS // 4)]
    return json.dumps(
        {
            "prompts": "shared" if shared else "unshared",
            "waiting": waiting,
            "step_us_p50": round(1e6 * percentile(steps, 0.5)),
            "step_us_p99": round(1e6 * percentile(steps, 0.99)),
            "step_us_max": round(1e6 * max(steps)),
            "full_us_p50": round(1e6 * percentile(full, 0.5)),
            "add_us": round(1e6 * traffic.adding),
            "evicted": traffic.memory.evicted,
        }
    )


def main() -> None:
    gc.disable()
    random.seed(0)
    for shared in (False, True):
        for waiting in WAITING:
            print(line(waiting, shared=shared), flush=True)
    print(json.dumps({"load": round(os.getloadavg()[0], 1)}))


if __name__ == "__main__":
    main()
