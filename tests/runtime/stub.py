"""A model that cannot be fooled: each page holds a hash of the whole prefix that it stands for.

Its next token is a function of that hash, so one wrong, stale or foreign page changes the output,
and `continuation` says what is right from the token ids alone.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch

from branchline.runtime.config import RuntimeConfig
from branchline.runtime.loop import Loop
from branchline.runtime.request import Request
from branchline.runtime.runner import CpuRunner
from branchline.runtime.sizing import Limits
from branchline.runtime.streams import WorkerStream
from branchline.sampling_params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from branchline.protocol import Failure, Update
    from branchline.runtime.models.inputs import ForwardInputs

VOCAB = 53
EOS = 0
MODULUS = (1 << 31) - 1


def mix(prefix: int, token: int) -> int:
    return (prefix * 1_000_003 + token + 7) % MODULUS


def next_token(prefix: int) -> int:
    return (prefix // 7) % VOCAB


def continuation(prompt: list[int], max_tokens: int, *, ignore_eos: bool = False) -> list[int]:
    """What the stub generates after a prompt, EOS included."""
    prefix = 0
    for token in prompt:
        prefix = mix(prefix, token)
    output: list[int] = []
    while len(output) < max_tokens:
        token = next_token(prefix)
        output.append(token)
        if token == EOS and not ignore_eos:
            break
        prefix = mix(prefix, token)
    return output


class PrefixHashModel:
    """Keeps, for each page, the hash of the prefix that ends there, its token and its position."""

    vocab_size = VOCAB
    context_length = 1 << 20
    page_bytes = 8
    segment_cost = 3

    def __init__(self) -> None:
        self.forwards = 0
        self.tokens = 0
        self.written = 0
        self.segments = 0
        self.read = 0

    def allocate(self, pages: int) -> None:
        self.hash = np.full(pages, -1, dtype=np.int64)
        self.token = np.full(pages, -1, dtype=np.int64)
        self.position = np.full(pages, -1, dtype=np.int64)

    def forward(self, inputs: ForwardInputs) -> torch.Tensor:
        self.forwards += 1
        self.tokens += len(inputs.input_ids)
        pages = inputs.page_table.numpy()[inputs.slots]
        row_of = np.repeat(np.arange(len(inputs.kv_lens)), np.diff(inputs.q_indptr))
        positions = inputs.positions.numpy()
        hashes = np.zeros(len(positions), dtype=np.int64)
        # Position by position over all rows, writers first: in lockstep, rows read each other.
        for index in np.lexsort((inputs.write_pages.numpy() == 0, positions)):
            row, position = row_of[index], int(positions[index])
            before = int(self.hash[pages[row, position - 1]]) if position else 0
            assert before >= 0, "read a page that was never written"
            token = int(inputs.input_ids[index])
            hashes[index] = mix(before, token)
            page = int(inputs.write_pages[index])
            self.written += page != 0
            if page:
                assert page == pages[row, position], "writes elsewhere than it reads"
                self.hash[page] = hashes[index]
                self.token[page], self.position[page] = token, position
            else:
                assert self.hash[pages[row, position]] == hashes[index], "recomputed another prefix"
        for row, kv_len in enumerate(inputs.kv_lens):
            self._check_row(pages[row, :kv_len])
        self._check_segments(inputs)
        logits = torch.zeros((len(inputs.logit_rows), VOCAB))
        for out, index in enumerate(inputs.logit_rows.tolist()):
            logits[out, next_token(int(hashes[index]))] = 10.0
        return logits

    def _check_segments(self, inputs: ForwardInputs) -> None:
        pages = inputs.page_table.numpy()[inputs.slots]
        queries = np.diff(inputs.q_indptr)
        ends = [0] * len(inputs.kv_lens)
        for segment in inputs.segments:
            self.segments += 1
            assert len(segment.rows) > 1
            for row in segment.rows:
                assert ends[row] == segment.start, "a gap between segments"
                ends[row] = segment.end
                shared = pages[list(segment.rows), segment.start : segment.end]
                assert (shared == shared[0]).all(), "members have other pages"
                assert segment.end <= inputs.kv_lens[row] - queries[row], "masks a query"
        self.read += sum(inputs.kv_lens) - sum(
            (s.end - s.start) * (len(s.rows) - 1) for s in inputs.segments
        )

    def _check_row(self, pages: np.ndarray) -> None:
        assert (pages != 0).all(), "reads the padding page"
        assert len(set(pages.tolist())) == len(pages), "one page for two positions"
        assert np.array_equal(self.position[pages], np.arange(len(pages)))
        before = np.concatenate([[0], self.hash[pages[:-1]]])
        assert np.array_equal(
            (before * 1_000_003 + self.token[pages] + 7) % MODULUS, self.hash[pages]
        )


class DelayingStream(WorkerStream):
    """Delays each job at random, so that host and device drift apart as on a real device."""

    def __init__(self, seed: int, most: float = 0.002) -> None:
        super().__init__()
        self._random = random.Random(seed)
        self._most = most

    def submit(self, job: Callable[[], object]) -> Future[object]:  # type: ignore[override]
        delay = self._random.random() * self._most

        def delayed() -> object:
            time.sleep(delay)
            return job()

        return super().submit(delayed)


class StubText:
    """Tokens as numbers; `stop_pairs` plays the part of stop strings, which only `push` can see."""

    def __init__(self, stop_ids: frozenset[int], stop_pairs: frozenset[tuple[int, int]]) -> None:
        self.matched: str | int | None = None
        self.text = ""
        self.kept = 0
        self.tail = ""
        self._stop_ids = stop_ids
        self._stop_pairs = stop_pairs
        self._last = -1

    def push(self, token: int) -> str:
        if token in self._stop_ids:
            self.matched = token
            return ""
        if (self._last, token) in self._stop_pairs:
            self.matched = "pair"
        self._last = token
        self.kept += 1
        self.text += f"{token} "
        return f"{token} "

    def finish(self) -> str:
        return ""


def make_request(
    prompt: list[int],
    *,
    stop_pairs: frozenset[tuple[int, int]] = frozenset(),
    salt: str | None = None,
    stream: bool = True,
    **params: object,
) -> Request:
    params = {"temperature": 0.0, "max_tokens": 8, **params}
    sampling = SamplingParams(**params)  # type: ignore[arg-type]
    stop_ids = frozenset(sampling.stop_token_ids) | (
        frozenset() if sampling.ignore_eos else frozenset({EOS})
    )
    return Request(
        prompt=prompt,
        params=sampling,
        seed=0,
        text=StubText(stop_ids, stop_pairs),  # type: ignore[arg-type]
        stop_ids=stop_ids,
        salt=salt,
        stream=stream,
    )


@dataclass
class Harness:
    """A loop driven by hand, with what it told each request."""

    loop: Loop = field(init=False)
    model: PrefixHashModel = field(init=False)
    updates: dict[Request, list[Update]] = field(default_factory=dict)
    failures: dict[Request, list[Failure]] = field(default_factory=dict)

    def take(self, events: list[tuple[Request, Update | Failure]]) -> None:
        for request, event in events:
            assert not self.ended(request), "an event after the last"
            if hasattr(event, "code"):
                self.failures.setdefault(request, []).append(event)
            else:
                self.updates.setdefault(request, []).append(event)

    def ended(self, request: Request) -> bool:
        updates = self.updates.get(request, [])
        return bool(self.failures.get(request)) or bool(updates and updates[-1].finish)

    def output(self, request: Request) -> list[int]:
        return [token for update in self.updates.get(request, []) for token in update.ids]

    def step(self) -> None:
        scheduler = self.loop.scheduler
        running, retractions = set(scheduler.running), scheduler.retractions
        self.loop.step(wait=False)
        self.loop.check()
        if scheduler.retractions > retractions:
            assert running >= set(scheduler.running), "admitted in a step that retracted"

    def run(self, *requests: Request, most: int = 10_000) -> None:
        self.loop.submit(requests)
        self.step()
        for _ in range(most):
            if self.loop.idle:
                self.check_idle()
                return
            self.step()
        raise AssertionError(f"not idle after {most} steps")

    def check_idle(self) -> None:
        memory = self.loop.scheduler.memory
        assert memory.private([]) == 0
        assert memory.tree.protected == 0
        assert memory.pool.free + memory.tree.cached + 1 == memory.pool.total


def make_harness(
    *,
    pages: int = 1000,
    max_context: int | None = None,
    model: PrefixHashModel | None = None,
    stream: WorkerStream | None = None,
    **settings: object,
) -> Harness:
    settings = {"max_running": 16, "max_batch_tokens": 64, "chunk_tokens": 16, **settings}
    model = model or PrefixHashModel()
    harness = Harness()
    harness.model = model
    config = RuntimeConfig(**settings)  # type: ignore[arg-type]
    limits = Limits(pages, max_context or pages - 1)
    harness.loop = Loop(
        CpuRunner(model, stream or WorkerStream(), config.max_running, limits),
        config,
        limits,
        model_name="stub",
        segment_cost=model.segment_cost,
        on_events=harness.take,
    )
    return harness
