"""A choice between texts: by what the model finds likeliest, or by what it writes."""

from __future__ import annotations

import math
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from branchline.choices import METHODS, ChoicesSamplingMethod, token_length_normalized
from branchline.constraint import checked, one_of
from branchline.control import check_timeout
from branchline.errors import InvalidRequest
from branchline.nodes import Gen, Node, Select
from branchline.settings import check_retry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from branchline.retry import Retry

MIN_SELECT_TEMPERATURE = 1e-5  # at or below it the best choice is taken


def select(
    name: str | None = None,
    choices: Sequence[str] | None = None,
    temperature: float = 0.0,
    choices_method: ChoicesSamplingMethod | str = token_length_normalized,
    *,
    method: Literal["score", "decode"] = "score",
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
        method: "score" weighs the whole choices. With "decode" the model writes one, token by
            token, and can write nothing else: a long common start of all costs nothing, and
            the temperature is the sampler's. It has no probabilities, and neither
            `choices_method` nor `calibration` counts.
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
    if method not in ("score", "decode"):
        raise InvalidRequest(f"method={method!r}: must be score or decode")
    if method == "decode":
        _only_scores(choices_method, calibration)
        return Gen(
            name,
            MappingProxyType(_decoding(choices, temperature, seed)),
            choices=tuple(choices),
            timeout=check_timeout(timeout),
            retry=check_retry(retry),
        )
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


def _only_scores(choices_method: ChoicesSamplingMethod | str, calibration: str | None) -> None:
    if choices_method is not token_length_normalized or calibration is not None:
        raise InvalidRequest(
            'method="decode": nothing is scored, so leave out choices_method and calibration'
        )


def _decoding(choices: Sequence[str], temperature: float, seed: int | None) -> dict[str, Any]:
    """The sampling of a choice that the model writes: a token may be a single byte."""
    return {
        "grammar": checked("regex", one_of(choices)),
        "temperature": temperature,
        "max_tokens": max(len(choice.encode()) for choice in choices) + 1,
        "seed": seed,
    }


def _method(method: ChoicesSamplingMethod | str) -> ChoicesSamplingMethod:
    if isinstance(method, ChoicesSamplingMethod):
        return method
    if method not in METHODS:
        raise InvalidRequest(
            f"choices_method={method!r}: must be a ChoicesSamplingMethod or {', '.join(METHODS)}"
        )
    return METHODS[method]
