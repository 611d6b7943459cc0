"""What each step computes: decodes first, then extends in chunks, within a budget of tokens."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from branchline.runtime.batch import Batch, Row, build_batch
from branchline.runtime.policy import WaitingQueue
from branchline.runtime.request import State
from branchline.runtime.sharing import SharingPlanner

if TYPE_CHECKING:
    from branchline.runtime.config import RuntimeConfig
    from branchline.runtime.memory import Memory
    from branchline.runtime.request import Request

RESERVE_START = 0.3  # of a request's remaining output is counted on at admission
RESERVE_MIN = 0.1
RESERVE_DECAY = 0.999  # a step


class Scheduler:
    """Continuous batching over one memory: a request is `waiting`, `running`, or has ended."""

    def __init__(self, memory: Memory, config: RuntimeConfig, segment_cost: int) -> None:
        self.memory = memory
        self.waiting = WaitingQueue(memory.peek, config.overtake_bound)
        memory.on_publish = self.waiting.publish
        self.running: dict[Request, None] = {}  # in the order of admission
        self.retractions = 0
        self._budget = config.max_batch_tokens
        self._chunk = config.chunk_tokens
        self._reserve = RESERVE_START
        self._may_admit = True
        cascade = config.cascade and not config.deterministic
        self._sharing = SharingPlanner(segment_cost if cascade else None)

    def add(self, request: Request) -> None:
        """Let a request wait for its turn."""
        self.memory.programs.arrived(request)
        self.waiting.add(request)

    def retire(self, request: Request) -> None:
        """End a request, waiting or running: the only way out, taken once."""
        assert request.state is not State.FINISHED
        if request.state is State.RUNNING:
            del self.running[request]
            self.memory.release(request)
        else:
            self.waiting.discard(request)
        request.state = State.FINISHED

    def short_of_pages(self) -> bool:
        """Whether the next step cannot be planned without taking pages from a running request."""
        if len(self.running) < 2:
            return False
        decodes = [request for request in self.running if self._decodes(request)]
        if not decodes:
            stuck = [
                request.held == request.kv_len for request in self.running if request.extending
            ]
            return bool(stuck) and all(stuck) and not self.memory.available
        return self.memory.available < sum(request.held == request.kv_len for request in decodes)

    def retract(self) -> None:
        """Take requests back to waiting until the rest can go on: lowest priority, then latest.

        Nothing may be in flight. What they computed stays in the tree, evictable, so a quick return
        is a hit. The last one running is never retracted: within the limits it fits alone.
        """
        while self.short_of_pages():
            request = min(reversed(self.running), key=lambda request: request.priority)
            del self.running[request]
            self.memory.release(request)
            request.retracted = True
            self.waiting.add(request)
            self.retractions += 1
            self._may_admit = False
            self._reserve = min(1.0, 2 * self._reserve)

    def next_batch(self) -> Batch | None:
        """Plan a step; None: there is nothing to launch. After this nothing leaves the batch."""
        decodes = [request for request in self.running if self._decodes(request)]
        self.memory.grow(decodes)
        rows = [self._decode(request) for request in decodes]
        budget = self._budget - len(rows)
        self._admit(budget)
        for request in self._extending():
            if budget <= 0:
                break
            row = self._extend(request, budget)
            if row is not None:
                budget -= row.end - row.start
                rows.append(row)
        self._may_admit = True
        self._reserve = max(RESERVE_MIN, self._reserve * RESERVE_DECAY)
        if not rows:
            return None
        sharing = self._sharing.plan(rows)
        return build_batch(rows, sharing, self.memory.take_patches(), self.memory.table)

    def _extending(self) -> list[Request]:
        """Who extends, in the order of admission; but a prompt does not stall a running stream."""
        extending = [request for request in self.running if request.extending]
        return sorted(extending, key=lambda request: request.computed < len(request.prompt))

    def _decodes(self, request: Request) -> bool:
        return not request.extending and not request.ended and request.remaining > 0

    def _decode(self, request: Request) -> Row:
        position = request.computed
        request.computed += 1
        return Row(
            request=request,
            slot=request.slot,
            start=position,
            end=position + 1,
            cached_len=request.cached_len,
            samples=True,
            logits_from=position,
            logits_to=position,
        )

    def _extend(self, request: Request, budget: int) -> Row | None:
        """The next chunk of what is known, less what others published; None: no page is left."""
        self.memory.match_published(request)
        start, cached_len = request.computed, request.cached_len
        wanted = min(start + self._chunk, start + budget, request.extend_len)
        end = self.memory.extend(request, wanted)
        if end <= start:
            return None
        request.computed = end
        request.count_computed(start, end)
        logits_from = max(start, request.first_logit)
        return Row(
            request=request,
            slot=request.slot,
            start=start,
            end=end,
            cached_len=cached_len,
            samples=end == request.extend_len,
            logits_from=logits_from,
            logits_to=max(logits_from, min(end, len(request.prompt) - 1)),
        )

    def _admit(self, budget: int) -> None:
        """Move waiting requests to running while there are slots, pages and tokens to compute."""
        if not self._may_admit or not self.waiting or not self.memory.has_slot:
            return
        budget -= sum(self._next_chunk(request) for request in self.running)
        if budget <= 0:
            return
        owed = sum(self._outstanding(request) for request in self.running)
        while budget > 0 and self.memory.has_slot and (head := self.waiting.head()):
            request, match = head
            needed = len(request.tokens) - match + self._output_reserve(request)
            if self.memory.admit(request, owed + needed):
                self.waiting.admitted(request)
                if request.admitted < 0:
                    request.admitted = time.monotonic()
                self.running[request] = None
                owed += self._outstanding(request)
                budget -= self._next_chunk(request)
            elif not self.waiting.pass_over(request):
                break
        self.waiting.rejoin()

    def _next_chunk(self, request: Request) -> int:
        return min(self._chunk, max(0, request.extend_len - request.computed))

    def _outstanding(self, request: Request) -> int:
        """Pages an admitted request still needs: the rest of its extend and its output reserve."""
        rest = max(0, request.extend_len - request.kv_len)
        return max(0, rest + self._output_reserve(request) - (request.held - request.kv_len))

    def _output_reserve(self, request: Request) -> int:
        remaining = request.remaining
        return remaining if request.retracted else math.ceil(self._reserve * remaining)
