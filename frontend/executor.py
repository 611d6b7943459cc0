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
import threading
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from branchline import eventloop, nodes
from branchline.feed import Feed
from branchline.interpreter import Step, execute, needs_backend
from branchline.program_error import ProgramError, Site, call_site
from branchline.seeds import derive_seed
from branchline.settings import with_changes
from branchline.snapshot import Snapshot
from branchline.variable import Variable

if TYPE_CHECKING:
    from branchline.interpreter import Run
    from branchline.protocol import Update


class Executor:
    """One state of a run. Threads may share it: what they append comes in order of the calls."""

    def __init__(
        self, run: Run, origin: Executor | None = None, branch: tuple[int, ...] = ()
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
                if step.name is not None and step.variable is not None:
                    self.set(step.name, step.variable)
            self._pending += steps
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

    def fork(self, size: int) -> list[Executor]:
        """Chains that start where this one is now."""
        with self._lock:
            ordinal, self._forks = self._forks, self._forks + 1
        branches = [
            Executor(self.run, self, (*self._branch, ordinal, index)) for index in range(size)
        ]
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
            params = with_changes(self.run.params, node.changes)
            stop = tuple(dict.fromkeys(params.stop + self.run.template.stop))
            params = with_changes(params, {"stop": stop, "seed": self._seed(params.seed)})
            self._gens += 1
        name = node.name if isinstance(node, nodes.Gen | nodes.Select | nodes.ScopeEnd) else None
        return Step(node, site, name, None if name is None else Variable(), params)

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
            if snapshot.error is not None and step.variable is not None:
                step.variable.fail(snapshot.error)
        return snapshot

    async def _attempt(self, snapshot: Snapshot, step: Step) -> Snapshot:
        """The snapshot after a step, or the same with an error. Nothing escapes: readers wait."""

        def show(update: Update) -> None:
            if self.run.stream:
                self._put(update.text)
                if step.variable is not None:
                    step.variable.updates.put(update)

        try:
            return await execute(self.run, snapshot, step, show)
        except ProgramError as error:
            return replace(snapshot, error=error)
        except Exception as error:  # noqa: BLE001 - every reader of the state raises it
            failure = ProgramError(
                error,
                program=self.run.program,
                site=step.site,
                variable=step.name,
                prompt=snapshot.text,
            )
            return replace(snapshot, error=failure)

    def _show(self, snapshot: Snapshot) -> None:
        """Put what the snapshot has beyond what was shown."""
        if self.run.stream:
            self._put(snapshot.text[self._shown_chars :])

    def _put(self, text: str) -> None:
        if text:
            self._shown_chars += len(text)
            self.shown.put(text)


def _resolved(snapshot: Snapshot) -> Future[Snapshot]:
    future: Future[Snapshot] = Future()
    future.set_result(snapshot)
    return future
