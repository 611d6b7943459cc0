"""The word with which a model writes: `gen`."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from pydantic import Json

from branchline.choices import token_length_normalized
from branchline.choosing import select
from branchline.constraint import constraint, only_one
from branchline.control import check_timeout
from branchline.nodes import Gen, Node
from branchline.settings import check_retry, sampling_changes
from branchline.tools import AUTO, Toolbox
from branchline.typed import check_type

if TYPE_CHECKING:
    import builtins
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from pydantic import BaseModel

    from branchline.choices import ChoicesSamplingMethod
    from branchline.grammar import Grammar
    from branchline.retry import Retry


def gen(
    name: str | None = None,
    max_tokens: int | None = None,
    min_tokens: int | None = None,
    n: int | None = None,
    stop: str | Sequence[str] | None = None,
    stop_token_ids: Sequence[int] | None = None,
    *,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    min_p: float | None = None,
    frequency_penalty: float | None = None,
    presence_penalty: float | None = None,
    repetition_penalty: float | None = None,
    logit_bias: Mapping[int, float] | None = None,
    ignore_eos: bool | None = None,
    seed: int | None = None,
    return_logprob: bool | None = None,
    logprob_start_len: int | None = None,
    top_logprobs_num: int | None = None,
    choices: Sequence[str] | None = None,
    choices_method: ChoicesSamplingMethod | str | None = None,
    type: Any = None,
    regex: str | None = None,
    json_schema: Mapping[str, Any] | str | builtins.type[BaseModel] | None = None,
    grammar: Grammar | str | None = None,
    tools: Sequence[Callable[..., Any]] | None = None,
    tool_choice: str = AUTO,
    parallel_tool_calls: bool = True,
    timeout: float | None = None,
    retry: Retry | None = None,
) -> Node:
    """Text that the model writes, kept in the variable `name`.

    What is None is as the run has it (`Program.run`); `stop` replaces the run's. With `choices` it
    is a `select`, and only `name`, `choices`, `temperature`, `choices_method`, `seed`, `timeout`
    and `retry` count. Of `choices`, `type`, `regex`, `json_schema`, `grammar` and `tools` one may
    be given: the model writes nothing else, unless `max_tokens` or a stop string ends it before.

    Args:
        name: the variable; without one the text is only appended.
        max_tokens: 0 computes the prompt only.
        min_tokens: the model cannot end before.
        n: independent texts. The variable is a list, and the program goes on from the first.
        stop: strings that end the text; they are not part of it.
        stop_token_ids: tokens that end the text.
        temperature: 0 takes the likeliest token.
        top_p: keep the likeliest tokens that have this much probability together.
        top_k: keep this many tokens; -1 keeps all.
        min_p: keep tokens at least this likely compared to the likeliest.
        frequency_penalty: lowers a token for each time it was generated.
        presence_penalty: lowers a token that was generated.
        repetition_penalty: makes a token in the prompt or output less likely, above 1.0.
        logit_bias: added to the logits of tokens.
        ignore_eos: go on after the model's end of text.
        seed: makes the draw repeat.
        return_logprob: report the log-probability of each token, in `ProgramState.get_meta_info`.
        logprob_start_len: report the prompt's as well, from this token on; -1 is none.
        top_logprobs_num: report this many of the likeliest tokens at each position.
        choices: write the likeliest of these instead.
        choices_method: how to decide between them.
        type: what the variable is: int, float, bool, `Literal`, an `Enum`, a list, a dataclass, a
            pydantic model … Where the text is none, reading the variable raises `ProgramError` with
            an `InvalidValue`; the text stays, in the state and in `ProgramState.text_of`. After a
            number the model may go on with one of the stop strings, which then include a new line.
        regex: of Python's syntax; the whole text matches it.
        json_schema: the text is JSON of this schema: a dict, JSON text or a pydantic model.
        grammar: the text is of this grammar; a text is one in llguidance's dialect of Lark.
        tools: functions that the model may call; the variable is a list of `ToolCall`s, to be run
            with `call_tools`. `describe_tools` is what tells the model of them.
        tool_choice: "auto" allows text before calls, or none; "required" takes at least one call;
            the name of a tool takes one call of it.
        parallel_tool_calls: several calls may follow each other, 16 at most. Without, the text ends
            with the first, which keeps a small model from repeating it.
        timeout: seconds that an attempt may take, waiting included.
        retry: whether and when to try again what failed.

    Raises:
        InvalidRequest: a value breaks a rule.
    """
    only_one(
        {
            "choices": choices or None,
            "type": type,
            "regex": regex,
            "json_schema": json_schema,
            "grammar": grammar,
            "tools": tools,
        }
    )
    if choices:
        return select(
            name,
            choices,
            temperature or 0.0,
            choices_method or token_length_normalized,
            seed=seed,
            timeout=timeout,
            retry=retry,
        )
    if type is not None:
        check_type(type)
    changes = sampling_changes(
        {
            "max_tokens": max_tokens,
            "min_tokens": min_tokens,
            "n": n,
            "stop": stop,
            "stop_token_ids": stop_token_ids,
            "temperature": temperature,
            "top_p": top_p,
            "top_k": top_k,
            "min_p": min_p,
            "frequency_penalty": frequency_penalty,
            "presence_penalty": presence_penalty,
            "repetition_penalty": repetition_penalty,
            "logit_bias": logit_bias,
            "ignore_eos": ignore_eos,
            "seed": seed,
            "return_logprob": return_logprob,
            "logprob_start_len": logprob_start_len,
            "top_logprobs_num": top_logprobs_num,
            "grammar": constraint(regex, json_schema, grammar),
        }
    )
    toolbox = None
    if tools is not None:
        toolbox = Toolbox.of(tools, tool_choice, parallel=parallel_tool_calls)
        changes["grammar"] = toolbox.grammar()
    return Gen(
        name,
        MappingProxyType(changes),
        type=type,
        tools=toolbox,
        timeout=check_timeout(timeout),
        retry=check_retry(retry),
    )


def gen_int(name: str | None = None, max_tokens: int | None = None, **settings: Any) -> Node:
    """`gen` of a whole number, with any of its other settings."""
    return gen(name, max_tokens, type=int, **settings)


def gen_string(name: str | None = None, max_tokens: int | None = None, **settings: Any) -> Node:
    """`gen` of a text between quotes, as JSON has it; the variable is what is between them."""
    return gen(name, max_tokens, type=Json[str], **settings)
