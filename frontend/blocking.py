"""The calls of a client for scripts that have no program: ask, wait, done."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from branchline import eventloop
from branchline.protocol import Generate
from branchline.sampling_params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Sequence

    from branchline.backend import Backend
    from branchline.protocol import Finish, TokenLogprob, Usage


@dataclass(frozen=True, slots=True)
class Completion:
    """One choice, whole."""

    text: str
    ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]  # one for each id, if asked
    finish: Finish
    usage: Usage


class Blocking:
    """Adds calls that wait to a `Backend`. They work from any thread but the background loop's."""

    def generate_text(
        self: Backend, prompts: str | Sequence[str], params: SamplingParams | None = None
    ) -> list[Completion]:
        """Continue each prompt, all at once: completions in the order of the prompts, `n` for each.

        A prompt is plain text: what looks like a special token in it is not one.

        Raises:
            BranchlineError: the first prompt that failed; the others were answered all the same.
        """
        texts = [prompts] if isinstance(prompts, str) else list(prompts)
        return eventloop.run(_complete_all(self, texts, params or SamplingParams()))


async def _complete_all(
    backend: Backend, texts: list[str], params: SamplingParams
) -> list[Completion]:
    done = await asyncio.gather(
        *(_complete(backend, text, params) for text in texts), return_exceptions=True
    )
    completions: list[Completion] = []
    for result in done:
        if isinstance(result, BaseException):
            raise result
        completions += result
    return completions


async def _complete(backend: Backend, text: str, params: SamplingParams) -> list[Completion]:
    request = Generate(backend.new_rid(), (("program", text),), params, stream=False)
    completions: dict[int, Completion] = {}
    async for update in backend.generate(request):
        assert update.finish is not None, "not streamed: one update for each choice"
        assert update.usage is not None, "comes with the finish"
        completions[update.index] = Completion(
            update.text, update.ids, update.logprobs, update.finish, update.usage
        )
    return [completions[index] for index in range(params.n)]
