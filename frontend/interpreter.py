"""Carries out one node: snapshot in, snapshot out. `Gen` and `Select` ask the backend once each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from branchline import nodes
from branchline.choices import decide
from branchline.generation import Choice, values
from branchline.protocol import Generate, Score
from branchline.roles import begin_turn, end_turn

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future
    from typing import Any

    from branchline.backend import Backend
    from branchline.program_error import Site
    from branchline.protocol import ChatTemplate, Update
    from branchline.sampling_params import SamplingParams
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


@dataclass(frozen=True, slots=True)
class Step:
    """A node at its place in a state: where it came from, what it fills, what it samples with."""

    node: nodes.Node
    site: Site
    name: str | None  # of what it fills
    variable: Variable | None
    params: SamplingParams | None  # of a Gen, complete


async def execute(
    run: Run, snapshot: Snapshot, step: Step, show: Callable[[Update], None]
) -> Snapshot:
    """The snapshot after a step. It fills the variable last: after that nothing can fail.

    Args:
        run: the run it belongs to.
        snapshot: what was there before.
        step: what to do.
        show: called with each update of a streamed generation's first choice.
    """
    match step.node:
        case nodes.Gen():
            return await _generate(run, snapshot, step, show)
        case nodes.Select():
            return await _select(run, snapshot, step.node, step.variable)
        case nodes.ScopeEnd():
            *scopes, start = snapshot.scopes
            assert step.variable is not None
            closed = replace(snapshot, scopes=tuple(scopes))
            step.variable.fill(snapshot.text[start:])
            return closed
        case _:
            return _constant(snapshot, step.node, run.template)


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
        case _:
            raise AssertionError(f"{node!r} is not a leaf")


async def _generate(
    run: Run, snapshot: Snapshot, step: Step, show: Callable[[Update], None]
) -> Snapshot:
    params = step.params
    assert params is not None
    request = Generate(run.backend.new_rid(), snapshot.pieces, params, stream=run.stream)
    choices = [Choice() for _ in range(params.n)]
    async for update in run.backend.generate(request):
        choices[update.index].take(update)
        if update.index == 0:
            show(update)
    pieces = [choice.pieces() for choice in choices]
    extended = snapshot.extend(pieces[0], choices[0].text)
    if step.variable is not None:
        step.variable.fill(*values(choices))
    return extended


async def _select(
    run: Run, snapshot: Snapshot, node: nodes.Select, variable: Variable | None
) -> Snapshot:
    scored = await run.backend.score(
        Score(
            run.backend.new_rid(),
            snapshot.pieces,
            node.choices,
            unconditional=node.method.requires_unconditional_logprobs,
        )
    )
    taken = decide(node.method, node.choices, scored)
    usage = {
        "id": scored.rid,
        "prompt_tokens": scored.usage.prompt_tokens,
        "cached_tokens": scored.usage.cached_tokens,
    }
    extended = snapshot.add(("program", taken.decision))
    if variable is not None:
        variable.fill(taken.decision, usage | taken.meta_info)
    return extended
