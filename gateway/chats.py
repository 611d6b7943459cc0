"""`/v1/chat/completions`: a conversation goes on."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from fastapi import APIRouter, Request, Response

from branchline.call_grammar import call_grammar
from branchline.gateway.answering import answer
from branchline.gateway.chat_writer import ChatWriter
from branchline.gateway.errors import refused
from branchline.gateway.fields import SamplingFields
from branchline.gateway.messages import (
    Message,
    NamedTool,
    Tool,
    ToolChoice,
    offered,
)
from branchline.gateway.tool_calls import described
from branchline.protocol import Conversation

if TYPE_CHECKING:
    from branchline.gateway.service import Service
    from branchline.protocol import ModelCard
    from branchline.sampling_params import SamplingParams


class ChatBody(SamplingFields):
    """What is sent to `/v1/chat/completions`. What messages say is never a special token."""

    messages: list[Message]
    max_completion_tokens: int | None = None  # by default as many as fit
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None  # auto, if there are tools
    parallel_tool_calls: bool | None = None  # false: at most one call
    continue_final_message: bool = False  # the last message is the assistant's, and goes on
    # Known, and nothing to do for them
    modalities: list[Literal["text"]] | None = None
    prediction: dict[str, Any] | None = None  # of the answer, to save time


def routes(service: Service) -> APIRouter:
    """The route."""
    router = APIRouter()

    @router.post("/v1/chat/completions", response_model=None)
    async def chats(body: ChatBody, request: Request) -> Response:
        model = service.model(body.model)
        tools = offered(body.tools, body.tool_choice)
        params = _params(body, tools, service.backend.card)
        conversation = _conversation(body, tools, service.backend.card)
        asked = service.question(body, params, conversation=conversation)
        names = [tool.function.name for tool in tools]
        writer = ChatWriter(model, params, names, usage=body.include_usage)
        return await answer(request, service.backend, service.gate, [asked], writer)

    return router


def _params(body: ChatBody, tools: list[Tool], card: ModelCard) -> SamplingParams:
    scores = bool(body.logprobs)
    if body.top_logprobs is not None and not scores:
        raise refused("top_logprobs: only with logprobs=true", "top_logprobs")
    limit = body.max_completion_tokens
    if limit is None:
        limit = card.context_length if body.max_tokens is None else body.max_tokens
    params = body.sampling(
        max_tokens=limit,
        logprobs=scores,
        top_logprobs=body.top_logprobs,
        logprob_texts=scores,
    )
    return _with_tools(params, body, tools) if tools else params


def _with_tools(params: SamplingParams, body: ChatBody, tools: list[Tool]) -> SamplingParams:
    """The parameters with the form that calls have."""
    if params.grammar is not None:
        raise refused(
            "tools and a form of the answer: only one of them; send tool_choice=none to keep the "
            "form",
            "tools",
        )
    schemas = {tool.function.name: tool.schema_ for tool in tools}
    named = isinstance(body.tool_choice, NamedTool)
    grammar = call_grammar(
        schemas,
        free=not named and body.tool_choice != "required",
        several=not named and body.parallel_tool_calls is not False,
    )
    return replace(params, grammar=grammar)


def _conversation(body: ChatBody, tools: list[Tool], card: ModelCard) -> Conversation:
    messages = [message.as_data() for message in body.messages]
    if card.takes_tools:
        shown = tuple(tool.as_data() for tool in tools)
        return Conversation(tuple(messages), shown, goes_on=body.continue_final_message)
    told = described(messages, tools)
    return Conversation(tuple(told), goes_on=body.continue_final_message)
