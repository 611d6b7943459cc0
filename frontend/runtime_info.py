"""What a runtime tells of itself: counters, the tree, the requests. Parts of messages."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from pydantic import ConfigDict

_FORBID_EXTRA = ConfigDict(extra="forbid")


@dataclass(frozen=True, slots=True)
class Histogram:
    """How often a value was at most each bound, not cumulated; the last count is the rest's."""

    __pydantic_config__ = _FORBID_EXTRA
    bounds: tuple[float, ...]
    counts: tuple[int, ...]  # one more than bounds
    sum: float


@dataclass(frozen=True, slots=True)
class RuntimeInfo:
    """What the runtime is doing: counters since its start unless they say otherwise."""

    __pydantic_config__ = _FORBID_EXTRA
    model: str
    uptime: float  # seconds
    running: int  # now
    waiting: int  # now
    pages_total: int  # without the padding page
    pages_free: int
    pages_cached: int  # in the tree
    pages_private: int  # held by running requests
    pages_protected: int  # of the cached ones, locked
    prompt_tokens: int  # of requests that have finished
    cached_prompt_tokens: int  # of those, found in the tree
    computed_prompt_tokens: int
    generated_tokens: int
    requests_finished: int
    requests_aborted: int
    retractions: int
    evicted_pages: int
    steps: int
    tokens_per_second: float  # generated, over the last seconds
    positions_attended: int = 0  # whose K and V rows attended to, summed over rows and steps
    positions_read: int = 0  # of those, read: what rows of a step share counts once
    step_seconds: dict[str, float] = field(default_factory=dict)  # the loop's time, by part
    forced_tokens: int = 0  # of the generated ones, taken from a grammar without being sampled
    recalled_tokens: int = 0  # of the prompts: ids the model wrote, sent back as text
    requests_timed_out: int = 0
    requests_good: int = 0  # of the finished ones: within both targets below
    target_ttft: float = 0.0  # seconds; 0: no target
    target_tpot: float = 0.0
    # Seconds: queue, ttft, tpot (the mean of a request), e2e
    histograms: dict[str, Histogram] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TreeNode:
    """A run of tokens in the tree, with the path of nodes above it."""

    __pydantic_config__ = _FORBID_EXTRA
    id: int
    parent: int  # -1: a root's child
    start: int  # positions [start, start + length) of the sequence
    length: int
    subtree: int  # tokens below and in it, those of nodes that are not shown too
    users: int  # running requests that hold it
    idle: float  # the share of the tree's last uses that are later: 0 just used, 1 longest unused
    text: str  # how it begins
    salted: bool


@dataclass(frozen=True, slots=True)
class RequestView:
    """Where a request stands."""

    __pydantic_config__ = _FORBID_EXTRA
    rid: str
    index: int
    state: Literal["waiting", "running"]
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    max_tokens: int
    age: float  # seconds since arrival
    program: str | None
    node: int | None  # the tree's node it holds, if that is shown
    priority: int = 0
