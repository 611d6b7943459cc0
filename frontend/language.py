"""The words a program is written in: `gen`, `select` and the three roles."""

from __future__ import annotations

import math
from types import MappingProxyType
from typing import TYPE_CHECKING

from branchline.choices import METHODS, ChoicesSamplingMethod, token_length_normalized
from branchline.control import check_timeout
from branchline.errors import InvalidRequest
from branchline.nodes import ExprList, Gen, Node, RoleBegin, RoleEnd, Select, as_node
from branchline.settings import check_retry, sampling_changes
from branchline.typed import check_type

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from branchline.retry import Retry

MIN_SELECT_TEMPERATURE = 1e-5  # at or below it the best choice is taken


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
    timeout: float | None = None,
    retry: Retry | None = None,
) -> Node:
    """Text that the model writes, kept in the variable `name`.

    What is None is as the run has it (`Program.run`); `stop` replaces the run's. With `choices` it
    is a `select`, and only `name`, `choices`, `temperature`, `choices_method`, `seed`, `timeout`
    and `retry` count.

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
            an `InvalidValue`; the text stays, in the state and in `ProgramState.text_of`.
        timeout: seconds that an attempt may take, waiting included.
        retry: whether and when to try again what failed.

    Raises:
        InvalidRequest: a value breaks a rule.
    """
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
        }
    )
    return Gen(
        name,
        MappingProxyType(changes),
        type=type,
        timeout=check_timeout(timeout),
        retry=check_retry(retry),
    )


def select(
    name: str | None = None,
    choices: Sequence[str] | None = None,
    temperature: float = 0.0,
    choices_method: ChoicesSamplingMethod | str = token_length_normalized,
    *,
    calibration: str | None = None,
    seed: int | None = None,
    timeout: float | None = None,
    retry: Retry | None = None,
) -> Node:
    """The choice that the model finds likeliest here, kept in the variable `name`.

    What is known about it (`ProgramState.get_meta_info`) has the `probabilities` of the choices.

    Args:
        name: the variable; without one the choice is only appended.
        choices: the texts to choose from.
        temperature: 0 takes the best. Above it one is drawn by exp(score / temperature).
        choices_method: what the best is: a method, or "token", "greedy", "unconditional", "sum" or
            "byte".
        calibration: a text that should favour no choice, such as "Answer:". What it says for each
            is subtracted; it takes a second request.
        seed: makes a draw repeat.
        timeout: seconds that an attempt may take, waiting included.
        retry: whether and when to try again what failed.

    Raises:
        InvalidRequest: there are no choices, one is not text, or another value breaks a rule.
    """
    if not choices or isinstance(choices, str):
        raise InvalidRequest(f"choices={choices!r}: select needs a list of at least one text")
    for choice in choices:
        if not isinstance(choice, str):
            raise InvalidRequest(f"choices holds {choice!r}; every choice must be text")
    if not (math.isfinite(temperature) and temperature >= 0):
        raise InvalidRequest(f"temperature={temperature}: must be at least 0")
    if calibration == "":
        raise InvalidRequest('calibration="": must be some text, such as "Answer:"')
    return Select(
        name,
        tuple(choices),
        _method(choices_method),
        temperature if temperature > MIN_SELECT_TEMPERATURE else 0.0,
        seed=seed,
        calibration=calibration,
        timeout=check_timeout(timeout),
        retry=check_retry(retry),
    )


def _method(method: ChoicesSamplingMethod | str) -> ChoicesSamplingMethod:
    if isinstance(method, ChoicesSamplingMethod):
        return method
    if method not in METHODS:
        raise InvalidRequest(
            f"choices_method={method!r}: must be a ChoicesSamplingMethod or {', '.join(METHODS)}"
        )
    return METHODS[method]


def system(expr: str | Node | None = None) -> ExprList:
    """A system turn; an empty one without an expression."""
    return turn("system", expr)


def user(expr: str | Node | None = None) -> ExprList:
    """A user turn; an empty one without an expression."""
    return turn("user", expr)


def assistant(expr: str | Node | None = None) -> ExprList:
    """An assistant turn; an empty one without an expression."""
    return turn("assistant", expr)


def turn(role: str, expr: str | Node | None) -> ExprList:
    """A turn of any role."""
    content = () if expr is None else (as_node(expr),)
    return ExprList((RoleBegin(role), *content, RoleEnd(role)))


def system_begin() -> RoleBegin:
    """The start of a system turn."""
    return RoleBegin("system")


def system_end() -> RoleEnd:
    """The end of a system turn."""
    return RoleEnd("system")


def user_begin() -> RoleBegin:
    """The start of a user turn."""
    return RoleBegin("user")


def user_end() -> RoleEnd:
    """The end of a user turn."""
    return RoleEnd("user")


def assistant_begin() -> RoleBegin:
    """The start of an assistant turn."""
    return RoleBegin("assistant")


def assistant_end() -> RoleEnd:
    """The end of an assistant turn."""
    return RoleEnd("assistant")
