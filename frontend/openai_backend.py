"""`OpenAI`: programs on any endpoint that speaks the OpenAI API, of chats or of completions."""

from __future__ import annotations

import asyncio
import itertools
import os
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from branchline.blocking import Blocking
from branchline.errors import InvalidRequest
from branchline.openai_answer import Answers
from branchline.openai_prompt import CHAT, as_messages, as_text, body_of
from branchline.openai_select import StepwiseSelect
from branchline.openai_stream import Endpoint
from branchline.protocol import ModelCard

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence

    from branchline.protocol import (
        ChatTemplate,
        Generate,
        Prompt,
        Score,
        Scored,
        Update,
    )
    from branchline.runtime_info import RuntimeInfo

OPENAI = "https://api.openai.com/v1"
# Models that know the length of what they write under the API's newer name alone.
NEWER = ("o1", "o3", "o4", "gpt-5")


class OpenAI(Blocking):
    """A `Backend` that asks an OpenAI-compatible endpoint.

    ::

        bl.OpenAI("gpt-4o-mini")
        bl.OpenAI("llama", base_url="http://127.0.0.1:8000/v1", chat=False)

    The endpoint has text only: it is sent a program's whole text with each request, a gen adds what
    it wrote as text, and token ids count as -1. A parameter that the API lacks is refused by name.
    A `json_schema` is a chat's `response_format`; other grammars, and tools, are refused by name,
    and a `type` is only parsed. Of `n` choices the first has the usage of all, which is how it is
    reported. A busy endpoint is asked again, when it says or after growing waits.

    `select` takes the choice that the model writes when it may write nothing else: token after
    token, with a `logit_bias` (so `choices_method` changes nothing, and a choice's score is its
    matches less the most). It needs `encode`, and text that goes on: completions, or a chat with
    `continues`.

    Raises:
        InvalidRequest: the address or a setting breaks a rule.
    """

    constrains = False

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        chat: bool = True,
        continues: bool = False,
        template: ChatTemplate | None = None,
        encode: Callable[[str], Sequence[int]] | None = None,
        extensions: Collection[str] = (),
        length: str | None = None,
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = 600.0,
        attempts: int = 4,
        concurrency: int = 64,
    ) -> None:
        """Set it up; nothing is sent yet.

        Args:
            model: as the endpoint names it.
            base_url: up to and with `/v1`; by default the environment's `OPENAI_BASE_URL`, else
                OpenAI's own.
            api_key: by default the environment's `OPENAI_API_KEY`; none is sent where there is
                none.
            chat: `/chat/completions`, where roles are messages and a gen is the assistant's turn;
                False: `/completions`, where everything is text.
            continues: the chat goes on from a turn that the assistant has begun, so text may come
                before a gen in it (vLLM and SGLang do, OpenAI does not).
            template: how roles read as text, for completions.
            encode: the model's tokenizer, text to ids: for OpenAI's models
                `tiktoken.encoding_for_model(model).encode`.
            extensions: parameters that this endpoint has beyond the API, such as "top_k", "regex".
            length: the API's name for the most tokens to write; by default the one that the model
                is known to take.
            body: further fields of every request.
            headers: further headers of every request.
            timeout: seconds of silence after which a request fails.
            attempts: how often a request is tried in all.
            concurrency: requests at the same time; others wait.
        """
        key = api_key if api_key is not None else os.environ.get("OPENAI_API_KEY")
        address = base_url or os.environ.get("OPENAI_BASE_URL") or OPENAI
        self._endpoint = Endpoint(
            base_url=address,
            headers=({"Authorization": f"Bearer {key}"} if key else {}) | dict(headers or {}),
            timeout=timeout,
            attempts=attempts,
        )
        self._chat = chat
        self._continues = continues
        self._encode = encode
        self._extensions = frozenset(extensions)
        newer = chat and model.startswith(NEWER)
        self._length = length or ("max_completion_tokens" if newer else "max_tokens")
        self._body = {"model": model} | dict(body or {})
        self._path = "/chat/completions" if chat else "/completions"
        self._card = ModelCard(model, 1 << 31, 1 << 31, (), CHAT if chat else template)
        self._rids = itertools.count()
        self._slots = asyncio.Semaphore(concurrency)

    @property
    def card(self) -> ModelCard:
        """The model that answers; how much it takes, and of what vocabulary, is not known."""
        return self._card

    def new_rid(self) -> str:
        """An rid that this backend has not used."""
        return str(next(self._rids))

    async def generate(self, request: Generate) -> AsyncIterator[Update]:
        """The updates until every choice has finished; closing the iterator hangs up."""
        params = request.params
        body = self._body | self._prompt(request.prompt)
        body |= body_of(params, extensions=self._extensions, length=self._length, chat=self._chat)
        answers = Answers(request, chat=self._chat)
        if not request.stream:
            for update in answers.whole(await self._ask(body)):
                yield update
            return
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        async with self._slots, aclosing(self._endpoint.stream(self._path, body)) as events:
            async for event in events:
                for update in answers.part(event):
                    yield update
        for update in answers.ends():
            yield update

    async def score(self, request: Score) -> Scored:
        """What each choice is worth, by what the model writes when it must write one of them."""
        if self._encode is None:
            raise InvalidRequest(
                "select: an OpenAI-compatible endpoint gives no likelihoods, and to let it write a "
                "choice token after token takes the model's tokenizer; pass encode="
            )
        if self._chat and not self._continues:
            raise InvalidRequest(
                "select: this chat endpoint cannot go on from a turn that has begun; use "
                "chat=False for its completions, or continues=True if it can"
            )
        select = StepwiseSelect(request, self._encode)
        while bias := select.bias():
            body = self._body | self._prompt((*request.prompt, ("program", select.written)))
            body |= {self._length: 1, "temperature": 0, "logit_bias": bias}
            select.take(await self._ask(body), chat=self._chat)
        return select.scored()

    async def flush(self) -> int:
        """Nothing: what the endpoint caches is its own."""
        return 0

    async def info(self) -> RuntimeInfo:
        """Not to be had from an endpoint."""
        raise InvalidRequest(f"{self._endpoint.base_url} does not say what it is doing")

    async def _ask(self, body: Mapping[str, Any]) -> dict[str, Any]:
        async with self._slots:
            return await self._endpoint.ask(self._path, body)

    def _prompt(self, prompt: Prompt) -> dict[str, Any]:
        if not self._chat:
            return {"prompt": as_text(prompt)}
        *messages, opened = as_messages(prompt)
        if not opened["content"]:
            return {"messages": messages}
        if self._continues:
            return {
                "messages": [*messages, opened],
                "add_generation_prompt": False,
                "continue_final_message": True,
            }
        raise InvalidRequest(
            f"a gen of this chat endpoint must come first in the assistant's turn, which begins "
            f"with {opened['content'][:80]!r}; use chat=False for its completions, or "
            "continues=True if it can go on from there"
        )
