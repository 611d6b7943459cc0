"""A request's life: what was asked, how far it has come, and which pages it holds."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from branchline.hints import Hints
    from branchline.protocol import TokenLogprob
    from branchline.radix import Node
    from branchline.runtime.constraint import Constraint
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

    What a grammar forces is known before it is computed, so a request that has decoded may have to
    extend again. The logits after a position are drawn from only if the next token is not known.
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
    priority: int = 0  # higher is admitted first
    timeout: float | None = None  # seconds after arrival
    origin: Origin | None = None
    owner: object = None  # whoever gathers the answers of several requests
    constraint: Constraint | None = None  # what its grammar allows; set before it waits
    id: int = field(default_factory=lambda: next(_ids))
    # When, in seconds of the monotonic clock; -1: not yet
    arrived: float = field(default_factory=time.monotonic)
    admitted: float = -1.0
    first_token: float = -1.0
    # Waiting
    arrival: int = -1  # order of arrival
    overtaken: int = 0  # later arrivals admitted first; current for its level's oldest one
    retracted: bool = False  # was running before: next in line, its whole output is reserved
    known: np.ndarray = field(init=False)  # int32: what an extend computes, `tokens` at its start
    state: State = State.WAITING
    # Running
    slot: int = -1  # row of the page table
    node: Node | None = None  # the locked end of the tree's part
    cached_len: int = 0  # positions whose pages are the tree's
    computed: int = 0  # the next position to compute
    held: int = 0  # positions that have a page
    extend_len: int = 0  # len(known) while it runs: the extend ends here, decode begins
    # Output: these grow together
    tokens: list[int] = field(default_factory=list)  # prompt and output, known ids only
    sampled_len: int = 0  # of tokens, up to the last that was drawn; behind it all are forced
    forced_tokens: int = 0  # of the output, never drawn
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    next_top: tuple[tuple[float, int], ...] = ()  # max_tokens=0: alternatives for the next position
    ended: bool = False  # the last known token ends the output
    pushed: int = 0  # generated ids that are in the text
    reported: int = 0  # generated ids that were sent
    # Usage
    computed_prompt_tokens: int = 0
    recalled_tokens: int = 0  # of the prompt: ids the model wrote, sent back as text

    def __post_init__(self) -> None:
        assert self.prompt, "an empty prompt is refused at arrival"
        if not self.tokens:
            self.tokens = list(self.prompt)
        self.sampled_len = len(self.tokens)
        self.known = np.array(self.tokens, dtype=np.int32)

    def append(self, token: int) -> None:
        """The next token of the output is known."""
        self.tokens.append(token)
        self.ended = token in self.stop_ids or self.output_len >= self.params.max_tokens

    def extend_again(self) -> None:
        """Let all that is known be computed before the next token is drawn."""
        new = np.array(self.tokens[len(self.known) :], dtype=np.int32)
        self.known = np.concatenate((self.known, new))
        self.extend_len = len(self.known)

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
        """Positions whose keys and values are launched and whose token ids are known.

        Once the output has ended, only those before the last draw: whether more was launched by
        then depends on the overlap, and what is cached must not.
        """
        known = self.sampled_len if self.ended else len(self.tokens)
        return min(self.kv_len, known - 1)

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
        """Tokens still to come after what is known or launched; 0: max_tokens will be reached."""
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
