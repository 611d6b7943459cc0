"""From what the language sends to what an OpenAI-compatible endpoint takes: prompts, parameters."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from branchline.errors import InvalidRequest
from branchline.protocol import ChatTemplate
from branchline.sampling_params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Collection

    from branchline.grammar import Grammar
    from branchline.protocol import Prompt

Message = dict[str, str]

ROLES = ("system", "user", "assistant")

# How turns read in a state's text. Only template pieces are looked at for them when the turns are
# told apart again, so no text of a program or a model can be taken for one.
CHAT = ChatTemplate(
    prefix={role: f"<|im_start|>{role}\n" for role in ROLES},
    suffix=dict.fromkeys(ROLES, "<|im_end|>\n"),
)
_TURNS = re.compile(r"<\|im_start\|>(\w+)\n|(<\|im_end\|>\n)")

# What every endpoint takes, by the field of SamplingParams.
STANDARD = {
    "temperature": "temperature",
    "top_p": "top_p",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
    "seed": "seed",
    "n": "n",
}
# What some take as well, under names that vLLM, SGLang and llama.cpp share.
EXTENSIONS = {
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "min_tokens": "min_tokens",
    "stop_token_ids": "stop_token_ids",
    "ignore_eos": "ignore_eos",
    "skip_special_tokens": "skip_special_tokens",
    "no_stop_trim": "include_stop_str_in_output",
}
_DEFAULTS = SamplingParams()


def as_text(prompt: Prompt) -> str:
    """The prompt of a completion.

    Raises:
        InvalidRequest: it is empty, or holds ids of another model.
    """
    text = "".join(_text(kind, content) for kind, content in prompt)
    if not text:
        raise InvalidRequest("the prompt is empty")
    return text


def as_messages(prompt: Prompt) -> list[Message]:
    """The turns of a chat. The last one is open, the assistant's, and what has been said in it.

    Raises:
        InvalidRequest: there is text outside the turns, or no open turn of the assistant's.
    """
    messages: list[Message] = []
    role, said = None, ""
    for kind, content in prompt:
        text = _text(kind, content)
        if kind != "template":
            said += text
            continue
        at = 0
        for mark in _TURNS.finditer(text):
            said += text[at : mark.start()]
            at = mark.end()
            if role is not None:
                messages.append({"role": role, "content": said.lstrip()})
            else:
                _nothing_between(said)
            role, said = mark[1], ""
        said += text[at:]
    if role != "assistant":
        _nothing_between(said)
        raise InvalidRequest(
            "a chat endpoint writes the assistant's turns only: put the gen in assistant(...), or "
            "use chat=False for an endpoint of completions"
        )
    return [*messages, {"role": role, "content": said.lstrip()}]


def body_of(
    params: SamplingParams, *, extensions: Collection[str], length: str, chat: bool
) -> dict[str, Any]:
    """The request's fields for these parameters; what is as the API has it anyway is left out.

    Args:
        params: as the language has them.
        extensions: fields beyond the API that the endpoint takes.
        length: the API's name for the most tokens to write.
        chat: whether log-probabilities are asked for as for a chat.

    Raises:
        InvalidRequest: a parameter has no counterpart there.
    """
    body: dict[str, Any] = {length: params.max_tokens}
    for setting in fields(params):
        name, value = setting.name, getattr(params, setting.name)
        if value == getattr(_DEFAULTS, name):
            continue
        if name in STANDARD:
            body[STANDARD[name]] = value
        elif name in EXTENSIONS and EXTENSIONS[name] in extensions:
            body[EXTENSIONS[name]] = value
        elif name not in _BY_HAND:
            raise InvalidRequest(_no_counterpart(name, value))
    if params.max_tokens == 0:
        raise InvalidRequest("max_tokens=0: an OpenAI-compatible endpoint always writes")
    if params.stop:
        body["stop"] = list(params.stop)
    if params.grammar is not None:
        body |= _constraint(params.grammar, extensions, chat=chat)
    if params.logit_bias:
        body["logit_bias"] = {str(token): bias for token, bias in params.logit_bias.items()}
    if params.wants_logprobs and chat:
        body |= {"logprobs": True, "top_logprobs": params.top_logprobs}
    elif params.wants_logprobs:
        body["logprobs"] = params.top_logprobs
    return body


_BY_HAND = frozenset({"max_tokens", "stop", "grammar", "logit_bias", "logprobs", "top_logprobs"})
_AS_GIVEN = {
    "regex": "regex",
    "json_schema": "json_schema",
    "lark": "grammar, or tools",
    "ebnf": "a grammar of kind ebnf",
    "structural_tag": "a grammar of kind structural_tag",
}


def _constraint(grammar: Grammar, extensions: Collection[str], *, chat: bool) -> dict[str, Any]:
    """A schema as the API's response_format; a regular expression where the endpoint has that."""
    if grammar.kind == "json_schema" and (chat or "response_format" in extensions):
        schema = {"name": "answer", "schema": json.loads(grammar.source), "strict": True}
        return {"response_format": {"type": "json_schema", "json_schema": schema}}
    if grammar.kind == "regex" and "regex" in extensions:
        return {"regex": grammar.source}
    extension = {"regex": "regex", "json_schema": "response_format"}.get(grammar.kind)
    way = f'; if this one can, say so with extensions=["{extension}"]' if extension else ""
    raise InvalidRequest(
        f"{_AS_GIVEN[grammar.kind]}: the OpenAI API has no such parameter "
        f"for {'chats' if chat else 'completions'}{way}"
    )


def _no_counterpart(name: str, value: object) -> str:
    if name in EXTENSIONS:
        return (
            f"{name}={value!r}: not a parameter of the OpenAI API; if this endpoint takes it, say "
            f"so with extensions=[{EXTENSIONS[name]!r}]"
        )
    return f"{name}={value!r}: an OpenAI-compatible endpoint has no such parameter; leave it out"


def _text(kind: str, content: Any) -> str:
    if kind == "tokens":
        raise InvalidRequest("the prompt holds token ids of another backend; fork it as text")
    assert isinstance(content, str)
    return content


def _nothing_between(text: str) -> None:
    if text.strip():
        raise InvalidRequest(
            f"a chat endpoint takes turns only, and this text is in none: {text.strip()[:80]!r}; "
            "put it in user(...), or use chat=False for an endpoint of completions"
        )
