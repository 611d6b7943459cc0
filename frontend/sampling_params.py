"""How tokens are chosen and when a generation ends: one record, passed whole to the sampler."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from pydantic import ConfigDict

from branchline.grammar import Grammar

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_STOP_STRINGS = 64
MAX_STOP_STRING_CHARS = 1024
MAX_TOP_LOGPROBS = 128
MAX_CHOICES = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """The parameters of one generation.

    Applied in this order: logit bias, penalties, min_tokens and grammar, temperature, top-k, top-p,
    min-p.

    Raises:
        ValueError: a value is of another type or out of range; the message names field, value and
            rule.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    # Length
    max_tokens: int = 128  # 0 computes the prompt only
    min_tokens: int = 0  # EOS and stop ids are masked until then
    n: int = 1  # independent choices of one prompt
    # The end
    stop: tuple[str, ...] = ()  # earliest match in the text wins
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    no_stop_trim: bool = False  # keep the matched stop in the text
    skip_special_tokens: bool = True
    # The form
    grammar: Grammar | None = None  # EOS is allowed exactly where it is complete
    jump_forward: bool = True  # what it leaves no choice about is taken in one step
    # The draw
    temperature: float = 1.0  # 0 is greedy
    top_k: int = -1  # -1 keeps the whole vocabulary
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0  # counts prompt and output
    frequency_penalty: float = 0.0  # counts output
    presence_penalty: float = 0.0  # counts output
    logit_bias: dict[int, float] = field(default_factory=dict)
    seed: int | None = None  # None: drawn at arrival and reported
    # What is reported
    logprobs: bool = False  # of each generated token, from the unmodified logits
    top_logprobs: int = 0  # alternatives at each reported position; at least 1 implies logprobs
    logprob_start: int | None = None  # prompt logprobs from this position on; None: none
    logprob_texts: bool = False  # with what each token reads as

    def __post_init__(self) -> None:
        self._check_types()
        _at_least("max_tokens", self.max_tokens, 0)
        _at_least("min_tokens", self.min_tokens, 0)
        _at_least("n", self.n, 1)
        _at_least("top_logprobs", self.top_logprobs, 0)
        _within("temperature", self.temperature, 0.0, 100.0)
        _within("min_p", self.min_p, 0.0, 1.0)
        _within("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _within("presence_penalty", self.presence_penalty, -2.0, 2.0)
        if self.n > MAX_CHOICES:
            raise ValueError(f"n={self.n}: at most {MAX_CHOICES} choices of one prompt")
        if self.min_tokens > self.max_tokens:
            raise ValueError(
                f"min_tokens={self.min_tokens} is more than max_tokens={self.max_tokens}"
            )
        if not (math.isfinite(self.top_p) and 0.0 < self.top_p <= 1.0):
            raise ValueError(f"top_p={self.top_p}: must be above 0 and at most 1")
        if self.top_k != -1 and self.top_k < 1:
            raise ValueError(f"top_k={self.top_k}: must be -1 (all) or at least 1")
        if not (math.isfinite(self.repetition_penalty) and 0.0 < self.repetition_penalty <= 10.0):
            raise ValueError(
                f"repetition_penalty={self.repetition_penalty}: must be above 0, at most 10"
            )
        if self.top_logprobs > MAX_TOP_LOGPROBS:
            raise ValueError(f"top_logprobs={self.top_logprobs}: at most {MAX_TOP_LOGPROBS}")
        if self.seed is not None and not 0 <= self.seed < 2**63:
            raise ValueError(f"seed={self.seed}: must be at least 0 and below 2**63")
        if self.logprob_start is not None:
            _at_least("logprob_start", self.logprob_start, 0)
        self._check_stops()
        for token, bias in self.logit_bias.items():
            if not math.isfinite(bias) or abs(bias) > 100:
                raise ValueError(f"logit_bias[{token}]={bias}: must be from -100 to 100")

    def _check_types(self) -> None:
        """An `Engine` gets these without the wire's validation in between."""
        for setting in fields(self):
            rule, holds = _TYPES[str(setting.type)]
            value = getattr(self, setting.name)
            if not holds(value):
                raise ValueError(f"{setting.name}={value!r}: must be {rule}")

    def _check_stops(self) -> None:
        if len(self.stop) > MAX_STOP_STRINGS:
            raise ValueError(f"stop has {len(self.stop)} strings; at most {MAX_STOP_STRINGS}")
        for text in self.stop:
            if not text:
                raise ValueError(
                    "stop holds an empty string, which would match everywhere; leave it out"
                )
            if len(text) > MAX_STOP_STRING_CHARS:
                raise ValueError(
                    f"stop: {len(text)} characters in one string; at most {MAX_STOP_STRING_CHARS}"
                )

    @property
    def greedy(self) -> bool:
        """Whether the highest logit is taken: temperature 0, or a filter that leaves one token."""
        return self.temperature == 0.0 or self.top_k == 1

    @property
    def wants_logprobs(self) -> bool:
        """Whether generated tokens are reported with their logprobs."""
        return self.logprobs or self.top_logprobs > 0

    @property
    def has_penalties(self) -> bool:
        """Whether the logits depend on the tokens so far."""
        return (
            self.repetition_penalty != 1.0
            or self.frequency_penalty != 0.0
            or self.presence_penalty != 0.0
        )

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raise ValueError where a token id of these is outside the model's vocabulary."""
        for name, ids in (("stop_token_ids", self.stop_token_ids), ("logit_bias", self.logit_bias)):
            for token in ids:
                if not 0 <= token < vocab_size:
                    raise ValueError(
                        f"{name} holds {token}: the vocabulary is 0 to {vocab_size - 1}"
                    )


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return _is_integer(value) or isinstance(value, float)


# By annotation: what a value must be, in words and as a test.
_TYPES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "int": ("an integer", _is_integer),
    "int | None": ("an integer or None", lambda value: value is None or _is_integer(value)),
    "float": ("a number", _is_number),
    "bool": ("True or False", lambda value: isinstance(value, bool)),
    "tuple[str, ...]": (
        "a tuple of texts",
        lambda value: isinstance(value, tuple) and all(isinstance(text, str) for text in value),
    ),
    "tuple[int, ...]": (
        "a tuple of token ids",
        lambda value: isinstance(value, tuple) and all(map(_is_integer, value)),
    ),
    "Grammar | None": (
        "a Grammar or None",
        lambda value: value is None or isinstance(value, Grammar),
    ),
    "dict[int, float]": (
        "numbers by token id",
        lambda value: (
            isinstance(value, dict)
            and all(map(_is_integer, value))
            and all(map(_is_number, value.values()))
        ),
    ),
}


def _at_least(name: str, value: int, low: int) -> None:
    if value < low:
        raise ValueError(f"{name}={value}: must be at least {low}")


def _within(name: str, value: float, low: float, high: float) -> None:
    if not (math.isfinite(value) and low <= value <= high):
        raise ValueError(f"{name}={value}: must be from {low:g} to {high:g}")
