"""Writes what happens to one state into the log of its run."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Literal

from branchline import nodes
from branchline.events import (
    Failed,
    Forked,
    Joined,
    RoleBegan,
    RoleEnded,
    TextAdded,
    Used,
    VariableDelta,
    VariableEnded,
    VariableStarted,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from branchline.events import Branch, Event, Log
    from branchline.interpreter import Step
    from branchline.program_error import ProgramError
    from branchline.protocol import Usage
    from branchline.snapshot import Snapshot


class Record:
    """The events of one branch, whose steps come one after the other."""

    def __init__(self, log: Log, branch: Branch) -> None:
        self.log = log
        self.branch = branch
        self._name: str | None = None  # of the step that is carried out
        self._shown = 0  # characters of its text that deltas have

    # ------------------------------------------------------------------ a step

    def begin(self, step: Step) -> None:
        """A step is about to be carried out."""
        self._name, self._shown = step.name, 0
        kind = _kind(step.node)
        if kind in ("gen", "select"):
            settings = _settings(step.node)
            self._put(
                VariableStarted(
                    name=step.name, kind=kind, site=step.site, settings=settings, **self._here()
                )
            )

    def delta(self, text: str) -> None:
        """The variable of the step has more text."""
        if text:
            self._shown += len(text)
            self._put(VariableDelta(name=self._name, text=text, **self._here()))

    def used(
        self, rid: str, usage: Usage, began: float, first: float | None, error: str | None
    ) -> None:
        """A request of the step has ended; times are of `time.perf_counter`."""
        self._put(
            Used(
                name=self._name,
                rid=rid,
                prompt_tokens=usage.prompt_tokens,
                cached_tokens=usage.cached_tokens,
                generated_tokens=usage.completion_tokens,
                seconds=time.perf_counter() - began,
                ttft=None if first is None else first - began,
                error=error,
                forced_tokens=usage.forced_tokens,
                **self._here(),
            )
        )

    def end(self, step: Step, before: Snapshot, after: Snapshot) -> None:
        """A step has been carried out."""
        text = after.text[len(before.text) :]
        match step.node:
            case nodes.RoleBegin(role):
                self._put(RoleBegan(role=role, text=text, **self._here()))
            case nodes.RoleEnd(role):
                self._put(RoleEnded(role=role, text=text, **self._here()))
            case nodes.Gen() | nodes.Select():
                self.delta(text[self._shown :])
                self._ended(step, text)
            case nodes.ScopeEnd():
                self._ended(step, before.text[before.scopes[-1] :])
            case _ if text:
                self._put(TextAdded(text=text, **self._here()))

    def fail(self, error: ProgramError) -> None:
        """The step has failed, and the state with it."""
        self._put(Failed(error=error, **self._here()))

    # ------------------------------------------------------------------ branches

    def forked(self, ordinal: int, size: int) -> None:
        """Branches go off."""
        self._put(Forked(ordinal=ordinal, size=size, **self._here()))

    def joined(self, ordinal: int, mode: str, names: tuple[str, ...]) -> None:
        """The branches of a fork came back."""
        self._put(Joined(ordinal=ordinal, mode=mode, names=names, **self._here()))

    def _ended(self, step: Step, text: str) -> None:
        """The variable of a step has its value, and the one of its reasoning if that is apart."""
        kind = _kind(step.node)
        assert kind is not None
        if step.name is None:
            self._put(VariableEnded(name=None, kind=kind, text=text, value=text, **self._here()))
        for name, variable in step.named():
            assert variable.filled.done(), "a step fills all of its variables"
            error = variable.filled.exception()
            self._put(
                VariableEnded(
                    name=name,
                    kind=kind if variable is step.variable else "reasoning",
                    text=text if variable is step.variable else variable.get(),
                    value=variable.get() if error is None else None,
                    meta=variable.meta(),
                    error=error,
                    **self._here(),
                )
            )

    def _here(self) -> dict[str, Any]:
        return {"at": self.log.now(), "branch": self.branch}

    def _put(self, event: Event) -> None:
        self.log.feed.put(event)


def _kind(node: nodes.Node) -> Literal["gen", "select", "scope"] | None:
    match node:
        case nodes.Gen():
            return "select" if node.choices else "gen"
        case nodes.Select():
            return "select"
        case nodes.ScopeEnd():
            return "scope"
        case _:
            return None


def _settings(node: nodes.Node) -> Mapping[str, Any]:
    """What a gen or a select says itself."""
    said: dict[str, Any] = {}
    match node:
        case nodes.Gen():
            said = {**node.changes, "type": node.type, "timeout": node.timeout}
            if node.choices:
                said |= {"choices": node.choices, "method": "decode", "grammar": None}
            if node.tools is not None:
                said |= {"tools": tuple(node.tools.tools), "grammar": None}
        case nodes.Select():
            said = {
                "choices": node.choices,
                "choices_method": type(node.method).__name__,
                "temperature": node.temperature or None,
                "calibration": node.calibration,
                "timeout": node.timeout,
            }
    return {name: value for name, value in said.items() if value is not None}
