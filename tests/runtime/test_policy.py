"""The order of admission, beside a policy that looks at every waiting request each time."""

from __future__ import annotations

import itertools
import random

import pytest

from branchline.runtime.memory import Memory
from branchline.runtime.policy import MOST_PASSED, WaitingQueue

from .stub import make_harness, make_request


class Rematching:
    """What `WaitingQueue` promises, from the definitions: match all, count all, take the least."""

    def __init__(self, match_length, bound: int) -> None:
        self.match_length = match_length
        self.bound = bound
        self.overtaken = {}  # of the waiting ones
        self.passed = set()

    def head(self):
        top = max((request.priority for request in self.overtaken), default=0)
        waiting = {r: count for r, count in self.overtaken.items() if r.priority == top}
        first = [request for request in waiting if request.retracted]
        first = first or [r for r, overtaken in waiting.items() if overtaken >= self.bound]
        if first:
            request = min(first, key=lambda request: request.arrival)
            return None if request in self.passed else (request, self.match_length(request))
        rest = [(r, self.match_length(r)) for r in waiting if r not in self.passed]
        return min(rest, key=lambda item: (-item[1], item[0].arrival), default=None)

    def admitted(self, request) -> None:
        del self.overtaken[request]
        for other in self.overtaken:
            same_level = other.priority == request.priority
            self.overtaken[other] += same_level and other.arrival < request.arrival


class Checked(WaitingQueue):
    """The queue, beside the definitions: every answer is compared."""

    def __init__(self, memory: Memory, bound: int) -> None:
        super().__init__(memory.peek, bound)
        self.right = Rematching(memory.peek, bound)
        self.admissions = self.due = self.passes = 0
        memory.on_publish = self.publish

    def add(self, request) -> None:
        super().add(request)
        self.right.overtaken[request] = 0

    def discard(self, request) -> None:
        super().discard(request)
        self.right.overtaken.pop(request, None)

    def head(self):
        expected, head = self.right.head(), super().head()
        assert head == expected
        self.check()
        return head

    def admitted(self, request) -> None:
        self.admissions += 1
        self.due += not request.retracted and request.overtaken >= self.right.bound
        self.right.admitted(request)
        super().admitted(request)

    def pass_over(self, request) -> bool:
        self.passes += 1
        self.right.passed.add(request)
        return super().pass_over(request)

    def rejoin(self) -> None:
        self.right.passed.clear()
        super().rejoin()
        self.check()

    def check(self) -> None:
        assert (set(self), len(self)) == (set(self.right.overtaken), len(self.right.overtaken))
        never_ran = [request for request in self if not request.retracted]
        turns = [(-request.priority, request.arrival) for request in never_ran]
        assert all(a < b for a, b in itertools.pairwise(turns))
        if never_ran:
            assert never_ran[0].overtaken == self.right.overtaken[never_ran[0]]


class Traffic:
    """A scheduler under random traffic, without a model: the ids that it would sample are drawn."""

    def __init__(self, seed: int, *, bound: int, priorities=(0,), **settings) -> None:
        self.priorities = priorities
        self.rng = random.Random(seed)
        self.scheduler = make_harness(
            max_running=4, overtake_bound=bound, **settings
        ).loop.scheduler
        self.waiting = Checked(self.scheduler.memory, bound)
        self.scheduler.waiting = self.waiting

    def arrive(self) -> None:
        family = self.rng.randrange(4)
        shared = [(family * 11 + i * i) % 5 for i in range(self.rng.choice([0, 4, 9, 20]))]
        tail = [self.rng.randrange(3) for _ in range(self.rng.randrange(1, 15))]
        request = make_request(
            shared + tail,
            max_tokens=self.rng.choice([0, 1, 5, 25]),
            salt=self.rng.choice([None, None, None, "a", "None"]),
        )
        request.priority = self.rng.choice(self.priorities)
        self.scheduler.add(request)

    def step(self) -> None:
        self.scheduler.retract()
        batch = self.scheduler.next_batch()
        self.scheduler.memory.check(self.scheduler.running)
        for row in batch.rows if batch else ():
            request = row.request
            if row.samples:
                request.tokens.append(self.rng.randrange(3))
                if request.output_len >= request.params.max_tokens:
                    self.scheduler.retire(request)

    def run(self, steps: int) -> None:
        for _ in range(steps):
            for _ in range(self.rng.choice([0, 0, 1, 3]) if len(self.waiting) < 40 else 0):
                self.arrive()
            if self.rng.random() < 0.1 and (live := [*self.waiting, *self.scheduler.running]):
                self.scheduler.retire(self.rng.choice(live))
            if self.rng.random() < 0.02:
                self.scheduler.memory.flush()
            self.step()
        while self.waiting or self.scheduler.running:
            self.step()


@pytest.mark.parametrize(
    ("pages", "chunk", "bound", "cache", "priorities"),
    [
        (64, 5, 3, True, (0,)),
        (80, 16, 1000, True, (0,)),
        (70, 3, 10, True, (0,)),
        (64, 16, 3, False, (0,)),
        (64, 5, 3, True, (0, 0, 7, -2)),
    ],
)
def test_the_order_is_that_of_matching_everyone_again(pages, chunk, bound, cache, priorities):
    admissions = due = passes = retractions = evicted = 0
    for seed in range(6):
        traffic = Traffic(
            seed,
            bound=bound,
            priorities=priorities,
            pages=pages,
            max_context=60,
            chunk_tokens=chunk,
            cache=cache,
        )
        traffic.run(200)
        assert is_empty(traffic.waiting)
        admissions += traffic.waiting.admissions
        due += traffic.waiting.due
        passes += traffic.waiting.passes
        retractions += traffic.scheduler.retractions
        evicted += traffic.scheduler.memory.evicted
    assert admissions > 400
    assert passes > 400
    assert retractions > 0
    assert (evicted > 0) == cache
    assert (due > 0) == (bound < 1000)


def is_empty(waiting: WaitingQueue) -> bool:
    """Whether nothing is left behind, not even an edge."""
    trie = waiting._trie
    return not (trie._roots or len(trie._frontiers) or waiting._levels)


def cached(memory: Memory, prompt: list[int]):
    """Put a prompt in the tree; the request that holds it there."""
    holder = make_request(prompt, max_tokens=1)
    assert memory.admit(holder, 0)
    memory.extend(holder, len(prompt))
    return holder


@pytest.mark.parametrize("count", [10, 1000])
def test_a_step_looks_at_as_many_prompts_however_many_wait(count):
    memory = Memory(3000, 8, 100)
    looks = []

    def match_length(request) -> int:
        looks.append(request)
        return memory.peek(request)

    waiting = WaitingQueue(match_length, 1000)
    memory.on_publish = waiting.publish
    shared = [1, 2, 3, 4, 5]
    requests = [make_request([*shared, 10 + i, 7], max_tokens=1) for i in range(count)]
    for request in requests:
        waiting.add(request)
    looks.clear()
    holder = cached(memory, [*shared, 10 + count // 2])
    assert waiting.head() == (requests[count // 2], 6)
    waiting.admitted(requests[count // 2])
    assert waiting.head() == (requests[0], 5)
    holder.computed = 0
    memory.release(holder)
    assert memory.flush() == 6
    assert waiting.head() == (requests[0], 0)
    assert len(looks) <= 5


def test_at_most_so_many_that_do_not_fit_are_tried_in_a_step():
    waiting = WaitingQueue(lambda _: 0, 1000)
    requests = [make_request([i + 1, 2, 3]) for i in range(MOST_PASSED + 5)]
    for request in requests:
        waiting.add(request)
    for _ in range(2):
        tried = [waiting.head()[0]]
        while waiting.pass_over(tried[-1]):
            tried.append(waiting.head()[0])
        assert tried == requests[:MOST_PASSED]
        waiting.rejoin()


def test_who_has_been_overtaken_enough_is_passed_by_nobody():
    waiting = WaitingQueue(lambda request: len(request.prompt), 2)
    cold, *hot = [make_request([1] * length) for length in (1, 2, 3, 4)]
    for request in (cold, *hot):
        waiting.add(request)
    for request in (hot[2], hot[1]):
        assert waiting.head() == (request, len(request.prompt))
        waiting.admitted(request)
    assert waiting.head() == (cold, 1)
    assert not waiting.pass_over(cold)


def test_one_passed_over_that_becomes_due_ends_the_step():
    waiting = WaitingQueue(lambda _: 0, 1)
    large, small, last = [make_request([1, 2]) for _ in range(3)]
    for request in (large, small, last):
        waiting.add(request)
    assert waiting.head() == (large, 0)
    assert waiting.pass_over(large)
    assert waiting.head() == (small, 0)
    waiting.admitted(small)
    assert waiting.head() is None
    waiting.rejoin()
    assert waiting.head() == (large, 0)


def test_prompts_that_share_every_length_need_no_recursion():
    memory = Memory(3000, 1, 2000)
    waiting = WaitingQueue(memory.peek, 10_000)
    memory.on_publish = waiting.publish
    requests = [make_request([*[1] * length, 2]) for length in range(1100)]
    for request in requests:
        waiting.add(request)
    cached(memory, [1] * 1200)
    for request in reversed(requests[-3:]):
        assert waiting.head() == (request, len(request.prompt) - 1)
        waiting.admitted(request)
    memory.flush()
    assert waiting.head() == (requests[-4], len(requests[-4].prompt) - 1), "it is held"
