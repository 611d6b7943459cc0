"""Models that somebody else serves."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn, cast

from branchline.errors import InvalidRequest
from branchline.sglang.backend import Endpoint
from branchline.sglang.chat_templates import ChatTemplate, get_chat_template

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from branchline.protocol import Generate, Update
    from branchline.sglang.params import Params

COMPLETION_MODELS = frozenset({"gpt-3.5-turbo-instruct"})
# What OpenAI's client takes, and what Branchline's backend calls it.
_CLIENT = {
    "api_key": "api_key",
    "base_url": "base_url",
    "timeout": "timeout",
    "default_headers": "headers",
    "encode": "encode",
}


def _later(name: str) -> Callable[..., NoReturn]:
    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise InvalidRequest(
            f"{name}: its own API is not spoken yet; OpenAI(…, base_url=…) speaks to every "
            "endpoint that has OpenAI's"
        )

    refuse.__doc__ = f"{name}'s own API. Refused: it is not spoken yet."
    return refuse


Anthropic = _later("Anthropic")
Crusoe = _later("Crusoe")
LiteLLM = _later("LiteLLM")
VertexAI = _later("VertexAI")


class TokenUsage:
    """The tokens that a backend has been charged for."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Count from nothing again."""
        self.prompt_tokens = 0
        self.completion_tokens = 0


class OpenAI(Endpoint):
    """A model behind OpenAI's API, or behind an endpoint that has the same.

    Args:
        model_name: as the endpoint names it.
        is_chat_model: whether it takes turns; by default every model but the one of completions.
        chat_template: how roles read as text, for completions: a name, or a template.
        is_azure: refused; Azure's endpoint that is compatible has a base_url.
        client: what SGLang hands to OpenAI's client: api_key, base_url, timeout, max_retries,
            default_headers.

    Attributes:
        token_usage: what its programs have used so far.
    """

    parses_program_text = False  # the endpoint has turns, not their marks
    enforces = False  # as with SGLang, who serves the model need not

    def __init__(
        self,
        model_name: str,
        is_chat_model: bool | None = None,
        chat_template: ChatTemplate | str | None = None,
        is_azure: bool = False,
        **client: Any,
    ) -> None:
        from branchline.openai_backend import OpenAI as Backend

        if is_azure:
            raise InvalidRequest("is_azure: pass the address of Azure's /openai/v1 as base_url")
        unknown = client.keys() - _CLIENT.keys() - {"max_retries"}
        if unknown:
            raise InvalidRequest(f"{', '.join(sorted(unknown))}: no setting; {', '.join(_CLIENT)}")
        if isinstance(chat_template, str):
            chat_template = get_chat_template(chat_template)
        settings = {_CLIENT[name]: client[name] for name in _CLIENT if name in client}
        if "max_retries" in client:
            settings["attempts"] = client["max_retries"] + 1
        self.is_chat_model = model_name not in COMPLETION_MODELS
        if is_chat_model is not None:
            self.is_chat_model = is_chat_model
        template = chat_template.for_runtime() if chat_template is not None else None
        super().__init__(
            Backend(model_name, chat=self.is_chat_model, template=template, **settings)
        )
        self.token_usage = TokenUsage()

    async def generate(self, request: Generate) -> AsyncGenerator[Update, None]:
        """The updates of a request, whose usage is counted.

        A completion that is to be a quoted string is asked for between its quotes.
        """
        quoted = not self.is_chat_model and getattr(request.params, "dtype", None) == "str"
        if quoted:
            request = _between_quotes(request)
        updates = cast("AsyncGenerator[Update, None]", super().generate(request))
        if quoted:
            updates = _quoted(updates)
        async with aclosing(updates):
            async for update in updates:
                if update.usage is not None:
                    self.token_usage.prompt_tokens += update.usage.prompt_tokens
                    self.token_usage.completion_tokens += update.usage.completion_tokens
                yield update


def _between_quotes(request: Generate) -> Generate:
    params = replace(cast("Params", request.params), dtype=None, stop=('"',))
    return replace(request, prompt=(*request.prompt, ("program", '"')), params=params)


async def _quoted(updates: AsyncGenerator[Update, None]) -> AsyncGenerator[Update, None]:
    """The updates, with a quote before the first text of each choice and one at its end."""
    begun: set[int] = set()
    async with aclosing(updates):
        async for update in updates:
            text = update.text if update.index in begun else f'"{update.text}'
            begun.add(update.index)
            finish = update.finish
            if finish is not None:
                text += '"'
                finish = replace(finish, tail=f'"{finish.tail}"')
            yield replace(update, text=text, finish=finish)
