"""`/generate`: SGLang's own shape of a request."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request, Response

from branchline.gateway.answering import DONE, answer
from branchline.gateway.chunks import ended
from branchline.gateway.errors import refused
from branchline.gateway.fields import (
    Body,
    Delivery,
    Ids,
    ManyIds,
    Texts,
    as_bias,
    as_grammar,
    as_texts,
    only_one,
    sampling_params,
)
from branchline.gateway.logprobs import finite, reported

if TYPE_CHECKING:
    from collections.abc import Sequence

    from branchline.gateway.service import Service
    from branchline.grammar import Grammar
    from branchline.protocol import Generate, Prompt, TokenLogprob, Update
    from branchline.sampling_params import SamplingParams

# Their names, where ours differ.
_RENAMED = {
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "sampling_seed": "seed",
}


class NativeParams(Body):
    """SGLang's sampling parameters."""

    max_new_tokens: int | None = None
    min_new_tokens: int | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None  # of no effect: there is one way to decode
    no_stop_trim: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    sampling_seed: int | None = None
    regex: str | None = None
    json_schema: str | None = None
    ebnf: str | None = None
    structural_tag: str | None = None


_GRAMMARS = ("regex", "json_schema", "ebnf", "structural_tag")
_OTHERWISE = {*_GRAMMARS, "stop", "logit_bias", "spaces_between_special_tokens"}


class NativeBody(Delivery):
    """What is sent to `/generate`: one prompt, or a list of them."""

    text: str | Texts | None = None
    input_ids: Ids | ManyIds | None = None
    sampling_params: NativeParams | list[NativeParams] | None = None
    return_logprob: bool = False
    logprob_start_len: int = -1  # prompt logprobs from this position on; -1: none
    top_logprobs_num: int = 0
    return_text_in_logprobs: bool = False
    log_metrics: bool | None = None  # of no effect: everything is counted


def routes(service: Service) -> APIRouter:
    """The route."""
    router = APIRouter()

    @router.post("/generate", response_model=None)
    async def generate(body: NativeBody, request: Request) -> Response:
        prompts, several = _prompts(body)
        given = body.sampling_params
        each = given if isinstance(given, list) else [given or NativeParams()] * len(prompts)
        if len(each) != len(prompts):
            raise refused(
                f"sampling_params: {len(each)} for {len(prompts)} prompts; one for each, or one",
                "sampling_params",
            )
        asked = [
            service.question(body, _params(one, body), prompt=prompt)
            for prompt, one in zip(prompts, each, strict=True)
        ]
        writer = NativeWriter(asked, several=several)
        return await answer(request, service.backend, service.gate, asked, writer)

    return router


class NativeWriter:
    """Writes answers as SGLang does: every event holds the whole text so far.

    Args:
        asked: the requests.
        several: whether a list is answered, even of one.
    """

    def __init__(self, asked: Sequence[Generate], *, several: bool) -> None:
        self._choices = [_Choice(one) for one in asked for _ in range(one.params.n)]
        self._several = several or len(self._choices) > 1

    def events(self, choice: int, update: Update) -> str:
        """The event of an update."""
        self._choices[choice].take(update)
        told = self._choices[choice].told()
        return f"data: {json.dumps({**told, 'index': choice} if self._several else told)}\n\n"

    def end(self) -> str:
        """What comes after the last choice."""
        return DONE

    def whole(self, choices: Sequence[Update]) -> Any:
        """The answer at once."""
        for choice, update in zip(self._choices, choices, strict=True):
            choice.take(update)
        told = [choice.told() for choice in self._choices]
        return told if self._several else told[0]


class _Choice:
    """What has been said of a choice so far."""

    def __init__(self, asked: Generate) -> None:
        self._asked = asked
        self._began = time.perf_counter()
        self._text: list[str] = []
        self._ids: list[int] = []
        self._input: list[TokenLogprob] = []
        self._output: list[TokenLogprob] = []
        self._last: Update | None = None

    def take(self, update: Update) -> None:
        """Add an update."""
        self._text.append(update.text)
        self._ids += update.ids
        self._input += update.prompt_logprobs
        self._output += reported(update)
        self._last = update

    def told(self) -> dict[str, Any]:
        """All of it."""
        return {"text": "".join(self._text), "output_ids": self._ids, "meta_info": self._meta()}

    def _meta(self) -> dict[str, Any]:
        assert self._last is not None, "told after an update"
        meta: dict[str, Any] = {
            "id": self._asked.rid,
            "finish_reason": None,
            "completion_tokens": len(self._ids),
        }
        finish, usage = self._last.finish, self._last.usage
        if finish is not None and usage is not None:
            matched = {"matched": finish.matched} if finish.reason == "stop" else {}
            length = {"length": usage.completion_tokens} if finish.reason == "length" else {}
            meta["finish_reason"] = {"type": finish.reason, **matched, **length, **ended(finish)}
            meta["prompt_tokens"] = usage.prompt_tokens
            meta["cached_tokens"] = usage.cached_tokens
            meta["e2e_latency"] = time.perf_counter() - self._began
        if self._asked.params.wants_logprobs:
            meta |= self._scores()
        return meta

    def _scores(self) -> dict[str, Any]:
        return {
            "input_token_logprobs": [_scored(token) for token in self._input],
            "output_token_logprobs": [_scored(token) for token in self._output],
            "input_top_logprobs": [_top(token) for token in self._input],
            "output_top_logprobs": [_top(token) for token in self._output],
        }


def _scored(token: TokenLogprob) -> list[Any]:
    return [finite(token.logprob), token.token, token.text]


def _top(token: TokenLogprob) -> list[list[Any]] | None:
    texts: tuple[str | None, ...] = token.top_texts or (None,) * len(token.top)
    pairs = zip(token.top, texts, strict=True)
    return [[finite(logprob), other, text] for (logprob, other), text in pairs] or None


def _prompts(body: NativeBody) -> tuple[list[Prompt], bool]:
    """The prompts, and whether they came as a list."""
    if (body.text is None) == (body.input_ids is None):
        raise refused("text or input_ids: one of them is the prompt")
    if isinstance(body.text, str):
        return [(("template", body.text),)], False
    if body.text is not None:
        prompts: list[Prompt] = [(("template", text),) for text in body.text]
    else:
        ids: list[Any] = body.input_ids or []
        if ids and isinstance(ids[0], int):
            return [(("tokens", tuple(ids)),)], False
        prompts = [(("tokens", tuple(one)),) for one in ids]
    if not prompts:
        raise refused("the list of prompts is empty")
    return prompts, True


def _params(one: NativeParams, body: NativeBody) -> SamplingParams:
    given = {
        _RENAMED.get(name, name): getattr(one, name)
        for name in NativeParams.model_fields
        if name not in _OTHERWISE
    }
    start = body.logprob_start_len if body.return_logprob and body.logprob_start_len >= 0 else None
    given |= {
        "stop": as_texts(one.stop),
        "logit_bias": as_bias(one.logit_bias),
        "grammar": _grammar(one),
        "logprobs": body.return_logprob,
        "top_logprobs": body.top_logprobs_num if body.return_logprob else 0,
        "logprob_start": start,
        "logprob_texts": body.return_text_in_logprobs,
    }
    return sampling_params(given)


def _grammar(one: NativeParams) -> Grammar | None:
    given = {kind: getattr(one, kind) for kind in _GRAMMARS}
    return only_one(
        {
            kind: None if source is None else as_grammar(kind, source)  # type: ignore[arg-type]
            for kind, source in given.items()
        }
    )
