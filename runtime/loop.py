"""The one loop: plan a step, launch it, and while it runs bring in the step before."""

from __future__ import annotations

import logging
import queue
import threading
from typing import TYPE_CHECKING

from branchline.errors import InvalidRequest, RuntimeFailed
from branchline.protocol import Failure, Update
from branchline.runtime.deadlines import Deadlines
from branchline.runtime.inspection import Inspector
from branchline.runtime.latency import Latencies
from branchline.runtime.memory import Memory
from branchline.runtime.reports import record, report
from branchline.runtime.request import State
from branchline.runtime.scheduler import Scheduler
from branchline.runtime.stats import Counters, runtime_info

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from branchline.hints import Branch
    from branchline.protocol import FailureCode
    from branchline.runtime.batch import Batch
    from branchline.runtime.config import RuntimeConfig
    from branchline.runtime.inspection import Picture
    from branchline.runtime.request import Request
    from branchline.runtime.runner import Runner, Sampled
    from branchline.runtime.sizing import Limits
    from branchline.runtime_info import RuntimeInfo

Event = tuple["Request", Update | Failure]

logger = logging.getLogger(__name__)


class Loop:
    """Serves requests on a runner. Everything but the thread-safe calls runs on the engine thread.

    `on_events` is called on the engine thread at most once a step, with all that it has to say.
    With overlap a step is launched before the one before it is looked at; without, each is brought
    in at once. Both give the same tokens.
    """

    def __init__(
        self,
        runner: Runner,
        config: RuntimeConfig,
        limits: Limits,
        *,
        model_name: str,
        segment_cost: int,
        on_events: Callable[[list[Event]], None],
        on_fatal: Callable[[BaseException], None] = lambda _: None,
    ) -> None:
        self.limits = limits
        memory = Memory(limits.pages, config.max_running, limits.max_context, cache=config.cache)
        self.scheduler = Scheduler(memory, config, segment_cost)
        self.counters = Counters(Latencies(config.target_ttft, config.target_tpot))
        self._inspector = Inspector(self.scheduler, self._info)
        self._deadlines = Deadlines()
        self._config = config
        self._model_name = model_name
        self._runner = runner
        self._on_events = on_events
        self._on_fatal = on_fatal
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._events: list[Event] = []
        self._in_flight: Sampled | None = None
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="branchline-engine", daemon=True)

    # ------------------------------------------------------------------ from any thread

    def submit(self, requests: Sequence[Request]) -> None:
        """Hand in requests; they may be admitted in the same step."""
        for request in requests:
            total = len(request.prompt) + request.params.max_tokens
            assert total <= self.limits.max_context, "the service clamps max_tokens"
        self._inbox.put(lambda: self._accept(requests))

    def abort(self, requests: Sequence[Request]) -> None:
        """End requests; each live one gets a failure of code `aborted`."""
        self._inbox.put(lambda: self._abort(requests))

    def ended(self, client: bytes, program: str | None = None, branch: Branch = ()) -> None:
        """A branch of a program asks nothing more; with no program, none of the client's does."""
        self._inbox.put(lambda: self.scheduler.memory.programs.ended(client, program, branch))

    def flush(self, done: Callable[[int], None]) -> None:
        """Drop every cached prefix that nobody holds; `done` gets the number of pages."""
        self._inbox.put(lambda: done(self.scheduler.memory.flush()))

    def info(self, done: Callable[[RuntimeInfo], None]) -> None:
        """Ask for the state of the runtime; `done` gets it."""
        self._inbox.put(lambda: done(self._info()))

    def inspect(self, nodes: int, done: Callable[[Picture], None]) -> None:
        """Ask for a picture with the `nodes` largest nodes; `done` gets it, some steps later."""
        self._inbox.put(lambda: self._inspector.ask(nodes, done))

    def start(self) -> None:
        """Start the engine thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the loop; live requests are aborted. Waits for the engine thread and the device."""
        self._inbox.put(self._stop)
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()

    # ------------------------------------------------------------------ on the engine thread

    def step(self, *, wait: bool = True) -> None:
        """One turn. With `wait` an idle loop blocks until something arrives."""
        self._receive(wait=wait)
        self.counters.start_lap()
        self._time_out()
        batch = self._plan()
        self.counters.lap("plan")
        if batch is None:
            self._settle()
        else:
            forward = self._runner.forward(batch)
            self.counters.launched(batch)
            self.counters.lap("launch")
            before, self._in_flight = self._in_flight, None
            self._advance(before)
            self._constrain(batch)
            sampled = self._runner.sample(forward)
            self.counters.lap("sample")
            self._deliver(before)
            self._in_flight = sampled
            if not self._config.overlap:
                self._settle()
        self._send()
        self.counters.lap("deliver")
        self._inspector.work()
        if self._config.check_invariants:
            self.check()

    @property
    def idle(self) -> bool:
        """Whether nothing runs, waits or is in flight."""
        return not (self._in_flight or self.scheduler.running or self.scheduler.waiting)

    def check(self) -> None:
        """Recount every page; AssertionError with what is wrong."""
        self.scheduler.memory.check(self.scheduler.running)

    def _receive(self, *, wait: bool) -> None:
        if wait and self.idle and not self._inspector.busy:
            self._inbox.get()()
        while not self._inbox.empty():
            self._inbox.get()()

    def _plan(self) -> Batch | None:
        if self.scheduler.short_of_pages():
            self._settle()  # one bubble: what is in flight must be known before a request gives way
            self.scheduler.retract()
        return self.scheduler.next_batch()

    def _settle(self) -> None:
        """Bring in the step in flight, if there is one."""
        before, self._in_flight = self._in_flight, None
        self._advance(before)
        self._deliver(before)

    def _advance(self, sampled: Sampled | None) -> None:
        """Take in the ids of a step: what is needed before the next one can be sampled."""
        if sampled is None:
            return
        results = sampled.results.result()
        self.counters.lap("wait")
        for row, result in zip(sampled.rows, results, strict=True):
            if row.request.state is State.RUNNING:
                try:
                    record(row.request, result)
                except (InvalidRequest, RuntimeFailed) as error:
                    self._fail_alone(row.request, error)
        self.counters.lap("advance")

    def _constrain(self, batch: Batch) -> None:
        """Fill the masks of the rows that are drawn from; the forward runs meanwhile."""
        for row in batch.rows:
            request = row.request
            if request.constraint is not None and row.draws:
                try:
                    request.constraint.prepare(request.output_len)
                except (InvalidRequest, RuntimeFailed) as error:
                    self._fail_alone(request, error)
        self.counters.lap("mask")

    def _fail_alone(self, request: Request, error: InvalidRequest | RuntimeFailed) -> None:
        """What goes wrong with a request's grammar ends this request, and no other."""
        code: FailureCode = "invalid" if isinstance(error, InvalidRequest) else "internal"
        self._fail([request], code, str(error))

    def _deliver(self, sampled: Sampled | None) -> None:
        """Text, stop strings, messages of a step that `_advance` took in; retire what has ended."""
        if sampled is None:
            return
        running = [row.request for row in sampled.rows if row.request.state is State.RUNNING]
        self.counters.generated(sum(map(self._say, running)))

    def _say(self, request: Request) -> int:
        """Report what became known, the end too; the number of generated tokens."""
        before = request.pushed
        self.counters.latencies.said(request)
        update = report(request)
        if update is not None:
            self._events.append((request, update))
        if request.ended:
            self._retire(request)
        return request.pushed - before

    def _accept(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self.scheduler.add(request)
            self._deadlines.add(request)
            if request.forced_tokens:
                self.counters.generated(self._say(request))

    def _abort(self, requests: Sequence[Request]) -> None:
        self._fail(requests, "aborted", "the request was aborted")

    def _fail(self, requests: Sequence[Request], code: FailureCode, message: str) -> None:
        for request in requests:
            if request.state is not State.FINISHED and request.arrival >= 0:
                self._events.append((request, Failure(request.rid, code, message)))
                self._retire(request, code)

    def _time_out(self) -> None:
        for request in self._deadlines.due():
            text = f"the request took longer than its timeout of {request.timeout:g} seconds"
            self._fail([request], "timeout", text)

    def _retire(self, request: Request, failed: FailureCode | None = None) -> None:
        self.scheduler.retire(request)
        self._deadlines.forget(request)
        self.counters.retired(request, failed)

    def _info(self) -> RuntimeInfo:
        return runtime_info(self._model_name, self.counters, self.scheduler)

    def _send(self) -> None:
        if self._events:
            events, self._events = self._events, []
            self._on_events(events)

    def _stop(self) -> None:
        self._stopping = True
        self._abort([*self.scheduler.running, *self.scheduler.waiting])

    def _run(self) -> None:
        try:
            while not self._stopping:
                self.step()
            self._settle()
            self._send()
        except BaseException as error:
            logger.exception("the loop failed; every request ends")
            self._die(error)
        finally:
            self._runner.close()

    def _die(self, error: BaseException) -> None:
        """Tell every live request, then the owner; pages are left as they are, as evidence."""
        live = [*self.scheduler.running, *self.scheduler.waiting]
        message = f"the runtime failed: {type(error).__name__}: {error}"
        self._on_events(self._events + [(r, Failure(r.rid, "internal", message)) for r in live])
        self._on_fatal(error)
