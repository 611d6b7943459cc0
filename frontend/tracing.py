"""What a program says before it knows its arguments, or anything of what a model answers.

The body runs once, on a backend that answers nothing, and stops where it needs an argument or an
answer to go on. Programs that run share their prefixes without this; it is for looking at them, and
for `cache`.
"""

from __future__ import annotations

import asyncio
import inspect
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from branchline import eventloop
from branchline.errors import BranchlineError, InvalidRequest
from branchline.executor import Executor
from branchline.hints import Hints
from branchline.interpreter import Run
from branchline.nodes import Fail
from branchline.protocol import Generate, ModelCard
from branchline.roles import PLAIN_TEMPLATE
from branchline.running import run_async_body, run_body
from branchline.sampling_params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from branchline.backend import Backend
    from branchline.nodes import Node
    from branchline.protocol import Prompt, Score, Scored, Update
    from branchline.runtime_info import RuntimeInfo

NO_MODEL = ModelCard("none", 0, 0, ())


@dataclass(frozen=True, slots=True)
class Trace:
    """What a program, or a branch of it, appends before it needs an argument or an answer to go on.

    Its text has one node a line, those of branches indented.
    """

    nodes: tuple[Node, ...]
    branches: tuple[Trace, ...]  # of all forks, in order
    prefix: str  # the text before the first node that is not constant
    pieces: Prompt  # the same as it is sent
    stopped: Exception | None = None  # what the body could not go on for; None: it has ended

    def __str__(self) -> str:
        return "\n".join(self._lines(""))

    def _lines(self, indent: str) -> Iterator[str]:
        yield from (f"{indent}{node!r}" for node in self.nodes)
        for index, branch in enumerate(self.branches):
            yield f"{indent}branch {index}:"
            yield from branch._lines(indent + "    ")


class NotRunning(BranchlineError):
    """A program that is only traced has come to where it needs an answer."""


def trace_body(name: str, body: Callable[[Any], Any], card: ModelCard) -> Trace:
    """Trace a body, as the template of a model has it."""
    run = Run(
        program=name,
        backend=_NoAnswers(card),
        template=card.chat_template or PLAIN_TEMPLATE,
        params=SamplingParams(),
        seed=None,
        stream=False,
        body=Future(),
    )
    executor = _TracingExecutor(run)
    if inspect.iscoroutinefunction(body):
        # In a thread: this one may have an event loop that runs.
        with ThreadPoolExecutor(1, thread_name_prefix="branchline-trace") as thread:
            error = thread.submit(asyncio.run, run_async_body(executor, body)).exception()
    else:
        error = run_body(executor, body)
    if error is not None and not isinstance(error, Exception):
        raise error
    return executor.trace(error)


def keep_prefix(backend: Backend, trace: Trace, seconds: float) -> int:
    """Compute a prefix and have the backend keep it for a time; its length in tokens.

    Raises:
        InvalidRequest: the time is out of range.
    """
    try:
        hints = Hints(keep=seconds)
    except ValueError as error:
        raise InvalidRequest(str(error)) from None
    return eventloop.run(_compute(backend, trace.pieces, hints)) if trace.prefix else 0


async def _compute(backend: Backend, pieces: Prompt, hints: Hints) -> int:
    params = SamplingParams(max_tokens=0)
    request = Generate(backend.new_rid(), pieces, params, stream=False, hints=hints)
    tokens = 0
    async for update in backend.generate(request):
        tokens = update.usage.prompt_tokens if update.usage is not None else tokens
    return tokens


class _TracingExecutor(Executor):
    """A state that keeps the nodes which are appended to it."""

    def __init__(self, run: Run, *origin: Any) -> None:
        super().__init__(run, *origin)
        self.nodes: list[Node] = []

    def submit(self, node: Node) -> None:
        self.nodes += [leaf for leaf in node.leaves() if not isinstance(leaf, Fail)]
        super().submit(node)

    def trace(self, stopped: Exception | None = None) -> Trace:
        end = self.tail().result()
        branches = tuple(
            branch.trace() for branch in self.branches if isinstance(branch, _TracingExecutor)
        )
        return Trace(tuple(self.nodes), branches, end.text, end.pieces, stopped)


class _NoAnswers:
    """The backend of a program that is only traced."""

    def __init__(self, card: ModelCard) -> None:
        self.card = card

    def new_rid(self) -> str:
        return "traced"

    def generate(self, request: Generate) -> AsyncIterator[Update]:
        raise NotRunning(f"request {request.rid!r}: a traced program gets no answers")

    async def score(self, request: Score) -> Scored:
        raise NotRunning(f"request {request.rid!r}: a traced program gets no answers")

    async def flush(self) -> int:
        return 0

    async def info(self) -> RuntimeInfo:
        raise NotRunning("a traced program has no runtime")
