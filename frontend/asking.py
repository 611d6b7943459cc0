"""Asks the backend for a node, within the limits that the node and its run set."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar, cast

from branchline.control import limit
from branchline.generation import Choice
from branchline.protocol import Generate, Score
from branchline.reasoning import Splitter

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from branchline.interpreter import Run, Step
    from branchline.nodes import Gen, Select
    from branchline.protocol import Prompt, Scored, Update

T = TypeVar("T")


class Generation:
    """Asks for what a gen writes; a stream's text is shown and put in its variables as it comes."""

    def __init__(self, run: Run, step: Step, prompt: Prompt, show: Callable[[str], None]) -> None:
        assert step.params is not None
        self._run = run
        self._step = step
        self._params = step.params
        self._prompt = prompt
        self._show = show
        self._shown = False  # some text: it will not be taken back
        marks = cast("Gen", step.node).reasoning
        self._keeps = marks is None or marks.keep
        self._splitter = None if marks is None else Splitter(marks)

    async def choices(self) -> list[Choice]:
        """All `n` of them, when they have ended."""
        return await _persist(self._run, self._step, self._attempt, lambda: not self._shown)

    async def _attempt(self) -> list[Choice]:
        backend = self._run.backend
        request = Generate(
            backend.new_rid(),
            self._prompt,
            self._params,
            stream=self._run.stream,
            program=self._run.claims.program,
            hints=self._run.claims.hints(self._step.branch, self._step.fan_out),
        )
        choices = [Choice() for _ in range(self._params.n)]
        # Closed in any case: a request that is left early is aborted then, not some time later.
        updates = cast("AsyncGenerator[Update, None]", backend.generate(request))
        async with aclosing(updates):
            async for update in updates:
                choices[update.index].take(update)
                if update.index == 0 and self._run.stream:
                    self._stream(update)
        return choices

    def _stream(self, update: Update) -> None:
        reasoning, answer = "", update.text
        if self._splitter is not None:
            reasoning, answer = self._splitter.push(update.text)
            if update.finish is not None:
                last = self._splitter.finish()
                reasoning, answer = reasoning + last[0], answer + last[1]
        self._shown = self._shown or bool(update.text)
        self._show(update.text if self._keeps else answer)
        if self._step.variable is not None:
            self._step.variable.updates.put(replace(update, text=answer))
        if self._step.reasoning is not None:
            self._step.reasoning.updates.put(replace(update, text=reasoning))


async def ask_scores(run: Run, step: Step, prompt: Prompt) -> tuple[Scored, Scored | None]:
    """The scores of a select's choices after the prompt, and after its calibrating text if any."""
    node = cast("Select", step.node)

    def question(context: Prompt) -> Score:
        unconditional = node.method.requires_unconditional_logprobs
        return Score(run.backend.new_rid(), context, node.choices, unconditional)

    async def attempt() -> tuple[Scored, Scored | None]:
        hints = run.claims.hints(step.branch, step.fan_out)
        here = replace(question(prompt), program=run.claims.program, hints=hints)
        if node.calibration is None:
            return await run.backend.score(here), None
        neutral = question((("program", node.calibration),))
        scored, apart = await asyncio.gather(run.backend.score(here), run.backend.score(neutral))
        return scored, apart

    return await _persist(run, step, attempt, lambda: True)


async def _persist(
    run: Run, step: Step, attempt: Callable[[], Awaitable[T]], repeatable: Callable[[], bool]
) -> T:
    """What an attempt returns, within the timeouts and as often as the retries allow."""
    node = cast("Gen | Select", step.node)
    retry = node.retry or run.retry
    async with run.control.guard(step.branch):
        for failed in itertools.count(1):
            try:
                async with limit(node.timeout):
                    return await attempt()
            except Exception as error:
                wait = retry.wait(error, failed) if repeatable() else None
                if wait is None:
                    raise
            await asyncio.sleep(wait)
    raise AssertionError("the attempts have no end but these")
