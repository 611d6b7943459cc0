"""The chain of a state: submitted from the program's thread, carried out on the background loop.

    program   s += "a"   s += gen("x")   f = s.fork(2)   s += gen("y")
    parent    ◀── snapshot ─── task x ──┬─────────────── task y ──▶
    f[0]                                └── f[0]'s own tasks ──▶
    f[1]                                └── f[1]'s own tasks ──▶

A task waits for the task before it, takes its snapshot and leaves a new one. A fork is a new chain
on the same tail: it costs nothing, waits for nothing, and no thread belongs to it. A failed step
leaves its error in the snapshot, and whatever comes after passes it on, so nothing ever waits for a
step that will not happen.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import weakref
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from branchline import eventloop, nodes
from branchline.collecting import announce
from branchline.events import Log
from branchline.feed import Feed
from branchline.interpreter import Step, execute, needs_backend, sampled_with
from branchline.program_error import ProgramError, Site, call_site
from branchline.record import Record
from branchline.seeds import derive_seed
from branchline.settings import with_changes
from branchline.snapshot import Snapshot
from branchline.variable import Variable
from branchline.watched import Watched

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from branchline.interpreter import Run


class Executor:
    """One state of a run. Threads may share it: what they append comes in order of the calls."""

    def __init__(
        self,
        run: Run,
        origin: Executor | None = None,
        branch: tuple[int, ...] = (),
        fan_out: int = 1,
    ) -> None:
        self.run = run
        self._lock = threading.Lock()  # of what is submitted
        self.variables: dict[str, Variable] = dict(origin.variables) if origin else {}
        self.names: Feed[str] = Feed()  # every variable, as it is named
        self.shown: Feed[str] = Feed()  # the text as it comes, if the run streams
        self._shown_chars = 0
        self.start: Future[Snapshot] = origin.tail() if origin else _resolved(Snapshot())
        self._tail = self.start
        self._pending: list[Step] = []  # constants: they go along with the next request or read
        self._branch = branch  # (ordinal of the fork, index of the branch) of every fork above
        self._fan_out = fan_out  # branches of the last of them
        self._origin = origin
        self._holders = 0  # states that are this one
        self._told_end = False  # since something was appended
        self.branches: list[Executor] = []  # of every fork
        self.record: Record = Record(origin.record.log if origin else Log(), branch)
        self._traced: bool = origin._traced if origin else announce(self)
        self._gens = 0
        self._forks = 0

    def submit(self, node: nodes.Node) -> None:
        """Append a node.

        Raises:
            InvalidRequest: a gen's parameters break a rule.
        """
        site = call_site()
        with self._lock:
            # All steps before any name: where a gen is refused, no variable is left to wait for.
            steps = [self._step(leaf, site) for leaf in node.leaves()]
            for step in steps:
                for name, variable in step.named():
                    self.set(name, variable)
            self._pending += steps
            self._told_end = False
            if self.run.stream or any(needs_backend(step.node) for step in steps):
                self._flush()

    def set(self, name: str, variable: Variable) -> None:
        """Let a name stand for a variable from here on."""
        self.variables[name] = variable
        self.names.put(name)

    def tail(self) -> Future[Snapshot]:
        """The snapshot after all that was submitted. It never fails: its `error` says what did."""
        with self._lock:
            self._flush()
            return self._tail

    def finished(self) -> Future[Snapshot]:
        """The snapshot after everything that the body submits."""
        finished: Future[Snapshot] = Future()

        def wait_for_tail(_: Future[Any]) -> None:
            self.tail().add_done_callback(lambda tail: finished.set_result(tail.result()))

        self.run.body.add_done_callback(wait_for_tail)
        return finished

    def joined(self, branches: Sequence[Executor], mode: str, names: Sequence[str] = ()) -> None:
        """Record that the branches of a fork have come back, as these variables or as text."""
        if branches:
            ordinal = branches[0]._branch[-2]
            self.tail().add_done_callback(lambda _: self.record.joined(ordinal, mode, tuple(names)))

    def settled(self, *, outside: bool) -> Future[None]:
        """Done when everything is that was appended to this state and to the branches below it.

        Args:
            outside: what the body will still append as well.
        """
        settled: Future[None] = Future()

        def wait_for_branches(_: Future[Any]) -> None:
            tails = [branch.tail() for branch in self.below()]
            left = itertools.count(len(tails), -1)

            def count(_: object) -> None:
                if next(left) == 0:
                    settled.set_result(None)

            for tail in tails:
                tail.add_done_callback(count)
            count(None)

        (self.finished() if outside else self.tail()).add_done_callback(wait_for_branches)
        return settled

    def below(self) -> Iterator[Executor]:
        """Every branch of every fork, and theirs."""
        for branch in self.branches:
            yield branch
            yield from branch.below()

    def cancel(self) -> None:
        """Abort what this state and the branches below it ask, now and from here on."""
        self.run.control.cancel(self._branch)
        self.end()

    def held_by(self, state: object) -> None:
        """A state is this one. When nobody holds one any more, here or below, nothing will come."""
        if self._branch:  # where the program starts, it ends with the run
            self._holders += 1
            weakref.finalize(state, self._let_go).atexit = False

    def _let_go(self) -> None:
        self._holders -= 1
        over, state = None, self
        while not state._is_held():
            over, state = state, state._origin or state
        if over is not None:
            over.end()

    def _is_held(self) -> bool:
        return not self._branch or any(one._holders for one in (self, *self.below()))

    def end(self) -> None:
        """Tell the backend that no more will be asked here; it is advice, and may be wrong."""
        if not self._told_end:
            self._told_end = True
            self.run.claims.end(self.run.backend, self._branch)

    def fork(self, size: int) -> list[Executor]:
        """Chains that start where this one is now."""
        with self._lock:
            ordinal, self._forks = self._forks, self._forks + 1
        # Before anything that the branches do, after everything that came before.
        self.tail().add_done_callback(lambda _: self.record.forked(ordinal, size))
        branches = [
            type(self)(self.run, self, (*self._branch, ordinal, index), size)
            for index in range(size)
        ]
        self.branches += branches
        if self.run.stream:
            for branch in branches:  # shows what it starts with
                branch._tail = eventloop.submit(branch._advance(branch.start, ()))
        return branches

    def _flush(self) -> None:
        if self._pending:
            steps, self._pending = tuple(self._pending), []
            self._tail = eventloop.submit(self._advance(self._tail, steps))

    def _step(self, node: nodes.Node, site: Site) -> Step:
        params = None
        if isinstance(node, nodes.Gen):
            params = sampled_with(node, self.run)
            params = with_changes(params, {"seed": self._seed(params.seed)})
            self._gens += 1
        seed = None
        if isinstance(node, nodes.Select) and node.temperature > 0:
            seed = self._seed(node.seed)
            self._gens += 1
        name = node.name if isinstance(node, nodes.Gen | nodes.Select | nodes.ScopeEnd) else None
        apart = name is not None and isinstance(node, nodes.Gen) and node.reasoning is not None
        return Step(
            node,
            site,
            name,
            variable=None if name is None else Variable(),
            params=params,
            branch=self._branch,
            fan_out=self._fan_out,
            seed=seed,
            reasoning=Variable() if apart else None,
        )

    def _seed(self, given: int | None) -> int | None:
        if given is not None or self.run.seed is None:
            return given
        return derive_seed(self.run.seed, *self._branch, self._gens)

    async def _advance(self, previous: Future[Snapshot], steps: tuple[Step, ...]) -> Snapshot:
        snapshot = await asyncio.wrap_future(previous)
        self._show(snapshot)
        for step in steps:
            if snapshot.error is None:
                snapshot = await self._attempt(snapshot, step)
                self._show(snapshot)
            if snapshot.error is not None:
                for _, variable in step.named():
                    variable.fail(snapshot.error)
        return snapshot

    async def _attempt(self, snapshot: Snapshot, step: Step) -> Snapshot:
        """The snapshot after a step, or the same with an error. Nothing escapes: readers wait."""
        run = self.run
        if needs_backend(step.node):
            run = replace(run, backend=Watched(run.backend, self.record, streams=self._traced))
        self.record.begin(step)
        try:
            after = await execute(run, snapshot, step, self._write)
        except ProgramError as error:
            failure = error
        except Exception as error:  # noqa: BLE001 - every reader of the state raises it
            failure = step.failure(self.run, snapshot, error)
        else:
            self.record.end(step, snapshot, after)
            return after
        self.record.fail(failure)
        return replace(snapshot, error=failure)

    def _show(self, snapshot: Snapshot) -> None:
        """Put what the snapshot has beyond what was shown."""
        if self.run.stream:
            self._put(snapshot.text[self._shown_chars :])

    def _write(self, text: str) -> None:
        """Show text of the step that is carried out, as it comes."""
        self._put(text)
        self.record.delta(text)

    def _put(self, text: str) -> None:
        if text:
            self._shown_chars += len(text)
            self.shown.put(text)


def _resolved(snapshot: Snapshot) -> Future[Snapshot]:
    future: Future[Snapshot] = Future()
    future.set_result(snapshot)
    return future
