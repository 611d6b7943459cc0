"""SGLang's words, with its order of arguments, and what it asks of backends.

The roles are the language's own.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from branchline import choosing
from branchline.choices import ChoicesSamplingMethod, token_length_normalized
from branchline.errors import InvalidRequest
from branchline.nodes import as_node
from branchline.sglang.backend import as_endpoint
from branchline.sglang.config import global_config
from branchline.sglang.function import function
from branchline.sglang.ir import ReasoningList, SglGen, SglSeparateReasoning
from branchline.sglang.runtimes import Engine, Runtime
from branchline.turns import (
    assistant,
    assistant_begin,
    assistant_end,
    system,
    system_begin,
    system_end,
    user,
    user_begin,
    user_end,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from branchline.nodes import Node

__all__ = [
    "Engine",
    "Runtime",
    "assistant",
    "assistant_begin",
    "assistant_end",
    "flush_cache",
    "function",
    "gen",
    "gen_int",
    "gen_string",
    "get_server_args",
    "get_server_info",
    "image",
    "select",
    "separate_reasoning",
    "set_default_backend",
    "system",
    "system_begin",
    "system_end",
    "user",
    "user_begin",
    "user_end",
    "video",
]


def gen(
    name: str | None = None,
    max_tokens: int | None = None,
    min_tokens: int | None = None,
    n: int | None = None,
    stop: str | Sequence[str] | None = None,
    stop_token_ids: Sequence[int] | None = None,
    stop_regex: str | Sequence[str] | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    min_p: float | None = None,
    frequency_penalty: float | None = None,
    presence_penalty: float | None = None,
    ignore_eos: bool | None = None,
    return_logprob: bool | None = None,
    logprob_start_len: int | None = None,
    top_logprobs_num: int | None = None,
    return_text_in_logprobs: bool | None = None,
    dtype: type | str | None = None,
    choices: Sequence[str] | None = None,
    choices_method: ChoicesSamplingMethod | None = None,
    regex: str | None = None,
    json_schema: str | None = None,
) -> Node:
    """Text that the model writes, kept in the variable `name`; `branchline.gen` says more.

    `dtype`, `regex` and `json_schema` hold the model to what they say; the value is text all the
    same.

    Raises:
        re.error: `regex` is no regular expression.
        InvalidRequest: the dtype is none of SGLang's.
    """
    if choices:
        return select(name, choices, temperature or 0.0, choices_method or token_length_normalized)
    if regex is not None:
        re.compile(regex)
    return SglGen(
        name,
        max_tokens,
        min_tokens,
        n,
        stop,
        stop_token_ids,
        stop_regex,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        frequency_penalty=frequency_penalty,
        presence_penalty=presence_penalty,
        ignore_eos=ignore_eos,
        return_logprob=return_logprob,
        logprob_start_len=logprob_start_len,
        top_logprobs_num=top_logprobs_num,
        return_text_in_logprobs=return_text_in_logprobs,
        dtype=dtype,
        regex=regex,
        json_schema=json_schema,
    )


# The arguments of gen_int and gen_string, in their order: gen's without min_tokens and the last.
_TYPED = (
    *("name", "max_tokens", "n", "stop", "stop_token_ids", "stop_regex", "temperature", "top_p"),
    *("top_k", "min_p", "frequency_penalty", "presence_penalty", "ignore_eos", "return_logprob"),
    *("logprob_start_len", "top_logprobs_num", "return_text_in_logprobs"),
)


def gen_int(*args: Any, **kwargs: Any) -> Node:
    """A gen whose text is a whole number. `gen`'s arguments from name on, without min_tokens."""
    return gen(**_typed("gen_int", args, kwargs), dtype=int)


def gen_string(*args: Any, **kwargs: Any) -> Node:
    """A gen whose text is a quoted string. `gen`'s arguments from name on, without min_tokens."""
    return gen(**_typed("gen_string", args, kwargs), dtype=str)


def _typed(function_name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    given = dict(zip(_TYPED, args, strict=False))
    unknown = sorted((kwargs.keys() - set(_TYPED)) | (kwargs.keys() & given.keys()))
    if unknown or len(args) > len(_TYPED):
        what = unknown or args[len(_TYPED) :]
        raise TypeError(f"{function_name}({what}): takes each of {', '.join(_TYPED)} once")
    return given | kwargs


def select(
    name: str | None = None,
    choices: Sequence[str] | None = None,
    temperature: float = 0.0,
    choices_method: ChoicesSamplingMethod = token_length_normalized,
) -> Node:
    """The choice that the model finds likeliest here, kept in the variable `name`."""
    return choosing.select(name, choices, temperature, choices_method)


def separate_reasoning(expr: Node | None = None, model_type: str | None = None) -> ReasoningList:
    """The expression, with what the model thinks in `name_reasoning_content`, and out of the text.

    Raises:
        ValueError: there is no named gen in the expression.
    """
    if expr is None:
        raise ValueError("separate_reasoning needs an expression with a named gen")
    node = as_node(expr)
    return ReasoningList((node, SglSeparateReasoning(model_type or "deepseek-r1", node)))


def image(expr: Any) -> Node:
    """An image. Refused: there are no models here that see."""
    raise InvalidRequest(f"image({expr!r}): models that take images are not served yet")


def video(path: Any, num_frames: int) -> Node:
    """Frames of a video. Refused like `image`."""
    raise InvalidRequest(f"video({path!r}): models that take images are not served yet")


def set_default_backend(backend: Any) -> None:
    """Let a backend answer every program of SGLang's that is run without `backend=`."""
    global_config.default_backend = getattr(backend, "endpoint", backend)


def flush_cache(backend: Any = None, empty_cache: bool = True) -> bool | None:
    """Forget every prefix that is not in use; False if there is no backend."""
    found = _found(backend)
    return found.flush_cache() if found is not None else False


def get_server_info(backend: Any = None) -> dict[str, Any] | None:
    """What the runtime is doing; None if there is no backend."""
    found = _found(backend)
    return found.get_server_info() if found is not None else None


get_server_args = get_server_info  # as it was called once


def _found(backend: Any) -> Any:
    try:
        return as_endpoint(backend)
    except InvalidRequest:
        return None
