"""The settings of a run and of a gen: SGLang's names for the fields of `SamplingParams`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from branchline.errors import InvalidRequest
from branchline.retry import Retry

if TYPE_CHECKING:
    from collections.abc import Mapping

    from branchline.sampling_params import SamplingParams

# The names that `run` and `run_batch` take for the sampler, with the field each one sets.
SAMPLING_SETTINGS = {
    "max_new_tokens": "max_tokens",
    "n": "n",
    "stop": "stop",
    "stop_token_ids": "stop_token_ids",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
    "repetition_penalty": "repetition_penalty",
    "logit_bias": "logit_bias",
    "ignore_eos": "ignore_eos",
    "return_logprob": "logprobs",
    "logprob_start_len": "logprob_start",
    "top_logprobs_num": "top_logprobs",
}
# Those that `run_batch` takes as well, beside what it names itself.
CONTROL_SETTINGS = ("model_defaults", "retry", "timeout")
RUN_SETTINGS = frozenset((*SAMPLING_SETTINGS, *CONTROL_SETTINGS, "backend", "seed", "stream"))


def sampling_changes(given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that settings change; None means "as it was" and changes nothing.

    Raises:
        InvalidRequest: what should be a list is none.
    """
    changes = {
        SAMPLING_SETTINGS.get(name, name): value
        for name, value in given.items()
        if value is not None
    }
    if isinstance(changes.get("stop"), str):
        changes["stop"] = (changes["stop"],)
    for name, kind in (("stop", tuple), ("stop_token_ids", tuple), ("logit_bias", dict)):
        if name in changes:
            try:
                changes[name] = kind(changes[name])
            except (TypeError, ValueError):
                raise InvalidRequest(
                    f"{name}={changes[name]!r}: must be a {kind.__name__}"
                ) from None
    if changes.get("logprob_start") == -1:  # SGLang's way of saying none
        changes["logprob_start"] = None
    return changes


def check_retry(retry: Retry | None) -> Retry | None:
    """The policy.

    Raises:
        InvalidRequest: it is none.
    """
    if retry is not None and not isinstance(retry, Retry):
        raise InvalidRequest(f"retry={retry!r}: must be a Retry, such as Retry(attempts=5)")
    return retry


def with_changes(params: SamplingParams, changes: Mapping[str, Any]) -> SamplingParams:
    """The parameters with some fields changed.

    Raises:
        InvalidRequest: the result breaks a rule of `SamplingParams`.
    """
    try:
        return replace(params, **changes)
    except ValueError as error:
        raise InvalidRequest(str(error)) from None
