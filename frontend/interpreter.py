"""Carries out one node: snapshot in, snapshot out. `Gen` and `Select` ask the backend."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from branchline import nodes
from branchline.asking import Generation, ask_scores
from branchline.backend import constrains
from branchline.claims import Claims
from branchline.control import Control
from branchline.errors import InvalidRequest
from branchline.generation import Written
from branchline.program_error import ProgramError
from branchline.reasoning import REASONING_SUFFIX
from branchline.retry import NO_RETRY, Retry
from branchline.roles import begin_turn, end_turn
from branchline.sampling_params import SamplingParams
from branchline.settings import with_changes
from branchline.type_grammar import held_to
from branchline.typed import InvalidValue
from branchline.weighing import weigh

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future
    from typing import Any

    from branchline.backend import Backend
    from branchline.control import Branch
    from branchline.program_error import Site
    from branchline.protocol import ChatTemplate
    from branchline.snapshot import Snapshot
    from branchline.variable import Variable


@dataclass(frozen=True, slots=True)
class Run:
    """What is the same for a program's state and all its forks."""

    program: str
    backend: Backend
    template: ChatTemplate
    params: SamplingParams  # what a gen starts from
    seed: int | None
    stream: bool
    body: Future[Any]  # what the body returned
    retry: Retry = NO_RETRY  # what a node starts from
    control: Control = field(default_factory=Control)
    claims: Claims = field(default_factory=Claims)


@dataclass(frozen=True, slots=True)
class Step:
    """A node at its place in a state: where it came from, what it fills, what it samples with."""

    node: nodes.Node
    site: Site
    name: str | None  # of what it fills
    variable: Variable | None
    params: SamplingParams | None  # of a Gen, complete
    branch: Branch = ()  # of the state
    fan_out: int = 1  # branches of its innermost fork
    seed: int | None = None  # of a Select that draws
    reasoning: Variable | None = None  # of a Gen that keeps it apart

    def named(self) -> Iterator[tuple[str, Variable]]:
        """What it fills, by name."""
        if self.name is not None and self.variable is not None:
            yield self.name, self.variable
            if self.reasoning is not None:
                yield self.name + REASONING_SUFFIX, self.reasoning

    def failure(self, run: Run, snapshot: Snapshot, error: Exception) -> ProgramError:
        """What the readers of this step get where an error ended it."""
        return ProgramError(
            error,
            program=run.program,
            site=self.site,
            variable=self.name,
            prompt=snapshot.text,
            node=self.node,
        )


async def execute(
    run: Run, snapshot: Snapshot, step: Step, show: Callable[[str], None]
) -> Snapshot:
    """The snapshot after a step. It fills the variables last: after that nothing can fail.

    Args:
        run: the run it belongs to.
        snapshot: what was there before.
        step: what to do.
        show: called with the state's text as a streamed generation adds to it.
    """
    match step.node:
        case nodes.Gen():
            return await _generate(run, snapshot, step, step.node, show)
        case nodes.Select():
            return await _select(run, snapshot, step, step.node)
        case nodes.ScopeEnd():
            *scopes, start = snapshot.scopes
            assert step.variable is not None
            closed = replace(snapshot, scopes=tuple(scopes))
            step.variable.fill(snapshot.text[start:], None, snapshot.text[start:])
            return closed
        case _:
            return _constant(snapshot, step.node, run.template)


def sampled_with(node: nodes.Gen, run: Run) -> SamplingParams:
    """The parameters of a gen in a run, its seed aside; those of a select are all its own.

    Raises:
        InvalidRequest: they break a rule.
    """
    if node.choices:
        return with_changes(SamplingParams(), node.changes)
    params = with_changes(run.params, node.changes)
    params = with_changes(params, {"stop": tuple(dict.fromkeys(params.stop + run.template.stop))})
    # What is thought before an answer is of no type.
    if node.type is None or node.reasoning is not None or not constrains(run.backend):
        return params
    return held_to(params, node.type)


def needs_backend(node: nodes.Node) -> bool:
    """Whether carrying out a node takes a request."""
    return isinstance(node, nodes.Gen | nodes.Select)


def _constant(snapshot: Snapshot, node: nodes.Node, template: ChatTemplate) -> Snapshot:
    match node:
        case nodes.Text(text):
            return snapshot.add(("program", text))
        case nodes.RoleBegin(role):
            return begin_turn(snapshot, role, template)
        case nodes.RoleEnd(role):
            return end_turn(snapshot, role, template)
        case nodes.ScopeBegin():
            return replace(snapshot, scopes=(*snapshot.scopes, len(snapshot.text)))
        case nodes.Append(pieces, text):
            return snapshot.extend(pieces, text)
        case nodes.Fail(error):
            raise error
        case nodes.Argument(name):
            raise InvalidRequest(f"the argument {name} of a traced program has no value")
        case _:
            raise AssertionError(f"{node!r} is not a leaf")


async def _generate(
    run: Run, snapshot: Snapshot, step: Step, node: nodes.Gen, show: Callable[[str], None]
) -> Snapshot:
    choices = await Generation(run, step, snapshot.pieces, show).choices()
    written = Written(choices, node)
    extended = snapshot.extend(*written.added())
    if step.reasoning is not None:
        step.reasoning.fill(written.reasoning())
    if step.variable is not None:
        try:
            value = written.value()
        except InvalidValue as error:
            # The text is there and the program goes on; only who wants the value hears of it.
            failure = step.failure(run, snapshot, error)
            step.variable.fail(failure, written.meta(), written.text())
        else:
            step.variable.fill(value, written.meta(), written.text())
    return extended


async def _select(run: Run, snapshot: Snapshot, step: Step, node: nodes.Select) -> Snapshot:
    scored, neutral = await ask_scores(run, step, snapshot.pieces)
    seed = secrets.randbits(63) if step.seed is None else step.seed
    decision, meta = weigh(node, scored, neutral, seed)
    extended = snapshot.add(("program", decision))
    if step.variable is not None:
        usage = {
            "id": scored.rid,
            "prompt_tokens": scored.usage.prompt_tokens,
            "cached_tokens": scored.usage.cached_tokens,
        }
        step.variable.fill(decision, usage | meta, decision)
    return extended
