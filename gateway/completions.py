"""`/v1/completions`: texts or ids go on."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request, Response

from branchline.gateway.answering import answer
from branchline.gateway.chunks import Head, ended
from branchline.gateway.errors import refused
from branchline.gateway.fields import Ids, ManyIds, SamplingFields, Texts
from branchline.gateway.logprobs import CompletionLogprobs, bytes_of, reported, text_of
from branchline.gateway.usage import Tally

if TYPE_CHECKING:
    from collections.abc import Sequence

    from branchline.gateway.service import Service
    from branchline.protocol import Prompt, Update
    from branchline.sampling_params import SamplingParams

MAX_TOKENS = 16  # by default, as OpenAI's


class CompletionBody(SamplingFields):
    """What is sent to `/v1/completions`.

    A text is parsed for special tokens, as every server of this protocol does: who sends it writes
    all of the prompt, its turns as well. With `parse_special` false it is not.
    """

    prompt: str | Texts | Ids | ManyIds
    echo: bool | None = None  # the prompt is part of the answer
    logprobs: int | None = None  # that many alternatives for each token
    best_of: int | None = None  # only n itself: choices are not ranked
    parse_special: bool = True


def routes(service: Service) -> APIRouter:
    """The route."""
    router = APIRouter()

    @router.post("/v1/completions", response_model=None)
    async def completions(body: CompletionBody, request: Request) -> Response:
        model = service.model(body.model)
        prompts = _prompts(body)
        params = _params(body)
        asked = [service.question(body, params, prompt=prompt) for prompt in prompts]
        writer = CompletionWriter(body, prompts, params, model)
        return await answer(request, service.backend, service.gate, asked, writer)

    return router


class CompletionWriter:
    """Writes the answer of a completion."""

    def __init__(
        self, body: CompletionBody, prompts: Sequence[Prompt], params: SamplingParams, model: str
    ) -> None:
        self._echo = bool(body.echo)
        self._prompts = prompts
        self._params = params
        self._head = Head("cmpl", "text_completion", model)
        self._chunks = self._head.chunks("text_completion", usage=body.include_usage)
        self._tally = Tally(params.n)
        self._scores: dict[int, CompletionLogprobs] = {}  # by choice, where they are asked for
        self._wants_scores = body.logprobs is not None
        self._begun: set[int] = set()

    def events(self, choice: int, update: Update) -> str:
        """The event of an update that has something to tell."""
        text, scores = self._news(choice, update)
        self._tally.add(choice, update.usage)
        news = f'"text": {json.dumps(text)}'
        finish = update.finish
        if finish is not None:
            return self._chunks.last(choice, news, finish.reason, finish, scores)
        if not text and not (scores and scores["tokens"]):
            return ""
        return self._chunks.choice(choice, news, scores)

    def end(self) -> str:
        """What comes after the last choice."""
        return self._chunks.end(self._tally.as_json())

    def whole(self, choices: Sequence[Update]) -> dict[str, Any]:
        """The answer at once."""
        made = []
        for index, update in enumerate(choices):
            assert update.finish is not None, "comes whole"
            text, scores = self._news(index, update)
            self._tally.add(index, update.usage)
            made.append(
                {
                    "index": index,
                    "text": text,
                    "logprobs": scores,
                    "finish_reason": update.finish.reason,
                    **ended(update.finish),
                }
            )
        return self._head.whole(made, self._tally.as_json())

    def _news(self, choice: int, update: Update) -> tuple[str, dict[str, Any] | None]:
        """The new text of a choice, and the scores of its tokens if they are asked for."""
        first = choice not in self._begun
        self._begun.add(choice)
        text = update.text
        if first and self._echo:
            text = self._prompt_text(choice, update) + text
        if not self._wants_scores:
            return text, None
        tokens = list(reported(update))
        if first and self._echo:
            tokens = [*update.prompt_logprobs, *tokens]
        scores = self._scores.setdefault(choice, CompletionLogprobs())
        return text, scores.take(tokens, self._params.top_logprobs)

    def _prompt_text(self, choice: int, update: Update) -> str:
        """The prompt as text: ids are told by the runtime, with their scores."""
        ((_, content),) = self._prompts[choice // self._params.n]
        if isinstance(content, str):
            return content
        tokens = update.prompt_logprobs
        return b"".join(bytes_of(text_of(token)) for token in tokens).decode("utf-8", "replace")


def _params(body: CompletionBody) -> SamplingParams:
    n = 1 if body.n is None else body.n
    if body.best_of not in {None, n}:
        raise refused(f"best_of={body.best_of}: choices are not ranked, so it must be n={n}")
    ids = not isinstance(body.prompt, str) and not isinstance(body.prompt[0], str)
    scores_prompt = body.echo and (body.logprobs is not None or ids)
    return body.sampling(
        max_tokens=MAX_TOKENS if body.max_tokens is None else body.max_tokens,
        logprobs=body.logprobs is not None,
        top_logprobs=body.logprobs or 0,
        logprob_start=0 if scores_prompt else None,
        logprob_texts=body.logprobs is not None or bool(scores_prompt),
    )


def _prompts(body: CompletionBody) -> list[Prompt]:
    """The prompts: one text or one list of ids, or several of one kind."""
    prompt: Any = body.prompt
    if not prompt:
        raise refused("prompt is empty: a completion needs at least one token to go on", "prompt")
    several = isinstance(prompt, list) and not isinstance(prompt[0], int)
    return [_piece(one, special=body.parse_special) for one in (prompt if several else [prompt])]


def _piece(prompt: str | list[int], *, special: bool) -> Prompt:
    if isinstance(prompt, list):
        return (("tokens", tuple(prompt)),)
    return ((("template", prompt) if special else ("program", prompt)),)
