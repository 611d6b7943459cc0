"""What hints save: prompt tokens found in the cache under memory pressure, with them and without.

usage: python benchmarks/hints.py [--quick]

The scheduler, the memory and the tree are the runtime's; there is no model, so a step takes no time
and a run is the same every time. Programs come from a seeded generator, a fixed number at a time:

agent   a prompt of tools that all share, then turns: a call is written, its result comes after a
        while and is appended. One in three requests beside them is a stranger's, asked once.
tree    a tree of thought: three thoughts at each level, a vote on each, the best one goes on.
search  the same, but two of the three go on at each level, so branches wait for one another.

The memory is given as a part of what the programs that run at a time hold when they are longest.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from branchline.hints import Hints
from branchline.runtime.config import RuntimeConfig
from branchline.runtime.jobs import RowResult, sample_jobs
from branchline.runtime.loop import Loop
from branchline.runtime.request import Origin, Request
from branchline.runtime.runner import Forward, Sampled
from branchline.runtime.sizing import Limits
from branchline.sampling_params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable

    from branchline.hints import Branch
    from branchline.protocol import Failure, Update
    from branchline.runtime.batch import Batch

VOCAB = 50_000
MEMORY = (0.25, 0.5, 0.75, 1.0)
AT_A_TIME = 24  # programs
CLIENT = b"benchmark"


@dataclass(frozen=True)
class Ask:
    """A request of a program; what it writes comes back."""

    prompt: list[int]
    length: int
    branch: Branch = ()
    fan_out: int = 1


@dataclass(frozen=True)
class Over:
    """A branch asks nothing more."""

    branch: Branch


# A program yields what it asks at the same time and is sent what was written; or it waits for so
# many steps; or it says that a branch is over.
Program = "Generator[list[Ask] | int | Over, list[list[int]], None]"


def draw(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(VOCAB) for _ in range(count)]


def agent(rng: random.Random, shared: list[int]) -> Program:
    text = shared + draw(rng, 100)
    for _ in range(rng.randint(3, 12)):
        (call,) = yield [Ask(text, 48)]
        yield round(rng.expovariate(1 / 150))
        text = text + call + draw(rng, rng.randint(40, 400))
    yield [Ask(text, 100)]


def thoughts(rng: random.Random, shared: list[int], *, keep: int) -> Program:
    frontier: list[tuple[Branch, list[int]]] = [((), shared + draw(rng, 120))]
    forks: dict[Branch, int] = {}
    for _level in range(5):
        asks = []
        for branch, text in frontier:
            fork = (*branch, forks.setdefault(branch, 0))
            forks[branch] += 1
            asks += [Ask(text + draw(rng, 8), 64, (*fork, k), 3) for k in range(3)]
        written = yield asks
        texts = [ask.prompt + more for ask, more in zip(asks, written, strict=True)]
        yield [
            Ask(text + draw(rng, 12), 4, ask.branch, 3)
            for ask, text in zip(asks, texts, strict=True)
        ]
        order = rng.sample(range(len(asks)), len(asks))
        frontier = [(asks[k].branch, texts[k]) for k in order[:keep]]
        for k in order[keep:]:
            yield Over(asks[k].branch)
        yield rng.randint(0, 40)
    branch, text = frontier[0]
    yield [Ask(text + draw(rng, 10), 80, branch, 3)]


def tree(rng: random.Random, shared: list[int]) -> Program:
    return thoughts(rng, shared, keep=1)


def search(rng: random.Random, shared: list[int]) -> Program:
    return thoughts(rng, shared, keep=2)


class NoText:
    """Tokens have no text here."""

    matched = None
    text = ""
    kept = 0
    tail = ""

    def push(self, _token: int) -> str:
        """Nothing to show."""
        return ""

    def finish(self) -> str:
        """Nothing is left."""
        return ""


@dataclass
class Ready:
    """A result that is there."""

    value: list[RowResult]

    def result(self) -> list[RowResult]:
        """The result."""
        return self.value


class NoModel:
    """A runner that writes what depends on the request and the position alone."""

    def forward(self, batch: Batch) -> Forward:
        """Compute nothing."""
        return Forward(batch, None)

    def sample(self, forward: Forward) -> Sampled:
        """Write a token for each row that samples."""
        rows, jobs = sample_jobs(forward.batch)
        results = [
            RowResult((), _token(row.request.seed, row.end) if job.draws else None, None)
            for row, job in zip(rows, jobs, strict=True)
        ]
        return Sampled(rows, Ready(results))

    def close(self) -> None:
        """Nothing is running."""


def _token(seed: int, position: int) -> int:
    return (seed * 2_654_435_761 + position * 40_503) % VOCAB


@dataclass(eq=False)
class Live:
    """A program that runs."""

    name: str
    program: Program
    asked: list[Request] = field(default_factory=list)
    answers: dict[Request, list[int]] = field(default_factory=dict)
    wakes_at: int = 0


class Simulation:
    """Programs on a loop; the clock counts steps."""

    def __init__(self, name: str, pages: int, *, hints: bool) -> None:
        self._make, self._strangers, context = WORKLOADS[name]
        self._hints = hints
        self._rng = random.Random(7)
        self._shared = draw(random.Random(1), 600)
        config = RuntimeConfig(max_running=16, cascade=False, overlap=False)
        self.loop = Loop(
            NoModel(),
            config,
            Limits(max(pages, context + 1), context),
            model_name="none",
            segment_cost=1,
            on_events=self._take,
        )
        self._owners: dict[Request, Live] = {}
        self._live: list[Live] = []
        self.steps = 0

    def run(self, count: int) -> None:
        """Run so many programs, `AT_A_TIME` of them at a time."""
        left = deque(range(count))
        while left or self._live:
            while left and len(self._live) < AT_A_TIME:
                number = left.popleft()
                program = self._make(random.Random(number), self._shared)
                live = Live(f"p{number}", program)
                self._live.append(live)
                self._resume(live, None)
            for live in list(self._live):
                if not live.asked and live.wakes_at <= self.steps:
                    self._resume(live, [])
            self.loop.step(wait=False)
            self.steps += 1

    def _resume(self, live: Live, sent: list[list[int]] | None) -> None:
        """Let a program go on until it asks or waits."""
        try:
            action = live.program.send(sent)
            while isinstance(action, Over):
                if self._hints:
                    self.loop.ended(CLIENT, live.name, action.branch)
                action = live.program.send([])
        except StopIteration:
            if self._hints:
                self.loop.ended(CLIENT, live.name)
            self._live.remove(live)
            return
        if isinstance(action, int):
            live.wakes_at = self.steps + action
        else:
            live.asked = [self._request(live, ask) for ask in action]
            self._owners |= dict.fromkeys(live.asked, live)
            self.loop.submit(live.asked)
            if self._rng.random() < self._strangers:
                self.loop.submit([self._stranger()])

    def _request(self, live: Live, ask: Ask) -> Request:
        hints = Hints(branch=ask.branch, fan_out=ask.fan_out)
        return Request(
            prompt=ask.prompt,
            params=SamplingParams(max_tokens=ask.length),
            seed=self._rng.randrange(1 << 30),
            text=NoText(),
            client=CLIENT,
            stream=False,
            origin=Origin(live.name, hints) if self._hints else None,
        )

    def _stranger(self) -> Request:
        params = SamplingParams(max_tokens=32)
        prompt = draw(self._rng, 400)
        return Request(prompt=prompt, params=params, seed=0, text=NoText(), stream=False)

    def _take(self, events: list[tuple[Request, Update | Failure]]) -> None:
        for request, event in events:
            live = self._owners.pop(request, None)
            if live is None:
                continue
            live.answers[request] = list(event.ids)
            if len(live.answers) == len(live.asked):
                written = [live.answers[asked] for asked in live.asked]
                live.asked, live.answers = [], {}
                self._resume(live, written)


# What makes a program, strangers to a request, the longest request.
WORKLOADS = {
    "agent": (agent, 1 / 3, 6_400),
    "tree": (tree, 0.0, 1_400),
    "search": (search, 0.0, 1_400),
}


def longest(make: Callable) -> int:
    """Tokens that a program asks about at a time, at most, without what all share: mean of 50."""
    sizes = []
    for seed in range(50):
        rng = random.Random(seed)
        program, size, sent = make(rng, []), 0, None
        try:
            while True:
                action = program.send(sent)
                asks = action if isinstance(action, list) else []
                sent = [draw(rng, ask.length) for ask in asks]
                written = [ask.prompt + more for ask, more in zip(asks, sent, strict=True)]
                size = max(size, distinct(written))
        except StopIteration:
            sizes.append(size)
    return sum(sizes) // len(sizes)


def distinct(texts: list[list[int]]) -> int:
    """The tokens of a tree of these texts."""
    ordered = sorted(texts)
    shared = [
        next((at for at, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), len(one))
        for one, two in itertools.pairwise(ordered)
    ]
    return sum(map(len, texts)) - sum(shared)


def line(name: str, memory: float | None, count: int, *, hints: bool) -> dict[str, object]:
    whole = 600 + AT_A_TIME * longest(WORKLOADS[name][0])
    pages = round(whole * memory) if memory else 5_000_000
    simulation = Simulation(name, pages, hints=hints)
    simulation.run(count)
    simulation.loop.check()
    counters = simulation.loop.counters
    return {
        "workload": name,
        "memory": memory or "unbounded",
        "hints": hints,
        "hit_rate": round(counters.cached_prompt_tokens / counters.prompt_tokens, 4),
        "computed": counters.computed_prompt_tokens,
        "steps": simulation.steps,
        "retractions": simulation.loop.scheduler.retractions,
        "pages": pages,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a fifth of the programs")
    count = 30 if parser.parse_args().quick else 150
    for name in WORKLOADS:
        print(json.dumps(line(name, None, count, hints=False)), flush=True)
        for memory in MEMORY:
            for hints in (False, True):
                print(json.dumps(line(name, memory, count, hints=hints)), flush=True)


if __name__ == "__main__":
    main()
