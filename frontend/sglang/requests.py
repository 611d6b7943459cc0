"""Requests without a program: the `generate` of SGLang's `Runtime` and `Engine`."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, cast

from branchline import eventloop
from branchline.errors import InvalidRequest
from branchline.generation import Choice
from branchline.protocol import Generate
from branchline.sampling_params import SamplingParams
from branchline.settings import sampling_changes, with_changes
from branchline.sglang.params import Params, patterns

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence

    from branchline.protocol import Update
    from branchline.sglang.backend import Endpoint

# SGLang's names of a request's parameters where `SamplingParams` has another.
_RENAMED = {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens"}
_REPORTED = ("return_logprob", "logprob_start_len", "top_logprobs_num")

Answer = dict[str, Any]


def answer(
    endpoint: Endpoint,
    prompt: str | Sequence[str],
    sampling_params: Mapping[str, Any] | None,
    reported: Mapping[str, Any],
) -> Answer | list[Answer]:
    """Continue a prompt, or each of several at the same time: SGLang's dicts of text and meta info.

    Args:
        endpoint: what answers.
        prompt: a text, or several.
        sampling_params: SGLang's, by name.
        reported: return_logprob, logprob_start_len, top_logprobs_num.

    Raises:
        InvalidRequest: a parameter is unknown or breaks a rule.
    """
    params = _params(sampling_params, reported)
    texts = [prompt] if isinstance(prompt, str) else list(prompt)
    answers = eventloop.run(_answer_all(endpoint, texts, params))
    return answers[0] if isinstance(prompt, str) and params.n == 1 else answers


def pieces(
    endpoint: Endpoint, prompt: str, sampling_params: Mapping[str, Any] | None
) -> Iterator[Answer]:
    """What continues a prompt, as it comes: each dict has all of the text so far.

    Closing it early aborts the request.
    """
    updates = updates_of(endpoint, prompt, sampling_params)
    choice = Choice()
    try:
        while True:
            update = eventloop.run(_next(updates))
            if update is None:
                return
            choice.take(update)
            yield {"text": choice.text, "meta_info": choice.meta()}
    finally:
        eventloop.run(updates.aclose())


async def async_pieces(
    endpoint: Endpoint, prompt: str, sampling_params: Mapping[str, Any] | None
) -> AsyncGenerator[Answer, None]:
    """`pieces` for any event loop."""
    updates = updates_of(endpoint, prompt, sampling_params)
    choice = Choice()
    try:
        while True:
            update = await asyncio.wrap_future(eventloop.submit(_next(updates)))
            if update is None:
                return
            choice.take(update)
            yield {"text": choice.text, "meta_info": choice.meta()}
    finally:
        await asyncio.wrap_future(eventloop.submit(updates.aclose()))


def updates_of(
    endpoint: Endpoint, prompt: str, sampling_params: Mapping[str, Any] | None
) -> AsyncGenerator[Update, None]:
    """The updates of a streamed request; to be read on the background loop.

    Raises:
        InvalidRequest: a parameter is unknown or breaks a rule, or asks for several texts.
    """
    params = _params(sampling_params, {})
    if params.n != 1:
        raise InvalidRequest(f"n={params.n}: only one text can be streamed")
    request = Generate(endpoint.new_rid(), (("template", prompt),), params)
    return cast("AsyncGenerator[Update, None]", endpoint.generate(request))


async def _next(updates: AsyncGenerator[Update, None]) -> Update | None:
    return await anext(updates, None)


async def _answer_all(endpoint: Endpoint, texts: list[str], params: Params) -> list[Answer]:
    answers = await asyncio.gather(*(_answer(endpoint, text, params) for text in texts))
    return [one for choices in answers for one in choices]


async def _answer(endpoint: Endpoint, text: str, params: Params) -> list[Answer]:
    request = Generate(endpoint.new_rid(), (("template", text),), params, stream=False)
    choices = [Choice() for _ in range(params.n)]
    async with aclosing(cast("AsyncGenerator[Update, None]", endpoint.generate(request))) as said:
        async for update in said:
            choices[update.index].take(update)
    return [{"text": choice.text, "meta_info": choice.meta()} for choice in choices]


def _params(given: Mapping[str, Any] | None, reported: Mapping[str, Any]) -> Params:
    named = {_RENAMED.get(name, name): value for name, value in (given or {}).items()}
    named["stop_regex"] = patterns(named.get("stop_regex"))
    for name, value in reported.items():
        if name not in _REPORTED:
            raise InvalidRequest(f"{name}={value!r}: a request has {', '.join(_REPORTED)}")
    try:
        changes = sampling_changes({**named, **reported})
        return cast("Params", with_changes(Params.of(SamplingParams()), changes))
    except TypeError as error:  # a name that no field has
        raise InvalidRequest(f"sampling_params={dict(given or {})!r}: {error}") from None
