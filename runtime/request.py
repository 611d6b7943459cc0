"""A request's life: what was asked, how far it has come, and which pages it holds."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from branchline.hints import Hints
    from branchline.protocol import TokenLogprob
    from branchline.radix import Node
    from branchline.runtime.text import TextStream
    from branchline.sampling_params import SamplingParams

_ids = itertools.count()


class State(Enum):
    """Where a request stands."""

    WAITING = auto()  # holds nothing
    RUNNING = auto()  # holds a slot, pages and a lock
    FINISHED = auto()  # holds nothing, has been answered


@dataclass(frozen=True, slots=True)
class Origin:
    """What a client tells of where a request comes from. One request of a job has it, for all."""

    program: str | None
    hints: Hints
    goes_on_at: int | None = None  # where the program goes on; None: at the request's end


@dataclass(eq=False, slots=True, kw_only=True)
class Request:
    """One sequence to compute. Fields are in the order of its life.

    ::

        tokens  0 ───── cached_len ───── committed = min(kv_len, len(tokens) − 1) ───── kv_len
        pages   [ tree's, locked )[ ours, can go in the tree               )[ overrun: only freed )

    Pages of [kv_len, held) are ours too: reserved for the tokens to come.
    """

    # What was asked (set by the service, never changed)
    prompt: list[int]
    params: SamplingParams
    seed: int  # of this choice
    text: TextStream  # ids to text, stop strings
    stop_ids: frozenset[int] = frozenset()  # end the output: EOS unless ignored, and the user's
    rid: str = ""
    index: int = 0  # of the choice
    client: bytes = b""
    stream: bool = True
    salt: str | None = None
    origin: Origin | None = None
    owner: object = None  # whoever gathers the answers of several requests
    id: int = field(default_factory=lambda: next(_ids))
    # Waiting
    arrival: int = -1  # order of arrival
    overtaken: int = 0  # later arrivals admitted first; current for the oldest one waiting
    retracted: bool = False  # was running before: next in line, its whole output is reserved
    known: np.ndarray = field(init=False)  # int32: what an extend computes, `tokens` as it waits
    state: State = State.WAITING
    # Running
    slot: int = -1  # row of the page table
    node: Node | None = None  # the locked end of the tree's part
    cached_len: int = 0  # positions whose pages are the tree's
    computed: int = 0  # the next position to compute
    held: int = 0  # positions that have a page
    extend_len: int = 0  # len(known) once admitted: the extend ends here, decode begins
    # Output: these grow together
    tokens: list[int] = field(default_factory=list)  # prompt and output, known ids only
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    next_top: tuple[tuple[float, int], ...] = ()  # max_tokens=0: alternatives for the next position
    ended: bool = False  # the last known token ends the output
    reported: int = 0  # generated ids that were sent
    # Usage
    computed_prompt_tokens: int = 0

    def __post_init__(self) -> None:
        assert self.prompt, "an empty prompt is refused at arrival"
        if not self.tokens:
            self.tokens = list(self.prompt)
        self.known = np.array(self.tokens, dtype=np.int32)

    def count_computed(self, start: int, end: int) -> None:
        """Count the prompt's positions in [start, end) as computed, at most the whole prompt."""
        prompt_len = len(self.prompt)
        computed = self.computed_prompt_tokens + max(0, min(end, prompt_len) - start)
        self.computed_prompt_tokens = min(computed, prompt_len)

    @property
    def kv_len(self) -> int:
        """Positions with a launched write; the tree's count as launched."""
        return max(self.computed, self.cached_len)

    @property
    def committed(self) -> int:
        """Positions whose keys and values are launched and whose token ids are known."""
        return min(self.kv_len, len(self.tokens) - 1)

    @property
    def extending(self) -> bool:
        """Whether known tokens remain to be computed before the next one can be sampled."""
        return self.computed < self.extend_len

    @property
    def output(self) -> list[int]:
        """The generated ids."""
        return self.tokens[len(self.prompt) :]

    @property
    def output_len(self) -> int:
        """The number of generated ids that are known."""
        return len(self.tokens) - len(self.prompt)

    @property
    def remaining(self) -> int:
        """Launches still to come after what is launched; 0: it is known to reach max_tokens."""
        sampled = 0 if self.extending else self.computed - len(self.prompt) + 1
        return max(0, self.params.max_tokens - max(sampled, self.output_len))

    @property
    def first_logit(self) -> int:
        """The first position whose logits the prompt's logprobs still need; past the end: none."""
        start = self.params.logprob_start
        if start is None:
            return len(self.tokens)
        done = max(start, 1) - 1 + self.collected_prompt_logprobs
        return done if done < len(self.prompt) - 1 else len(self.tokens)

    @property
    def collected_prompt_logprobs(self) -> int:
        """How many prompt logprobs with a context are known."""
        first_has_none = self.params.logprob_start == 0 and bool(self.prompt_logprobs)
        return len(self.prompt_logprobs) - int(first_has_none)
