"""The fields that completions and chats share: OpenAI's, and those that other servers added.

Which values are allowed is said in one place, `SamplingParams`. Here are only names and types.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from branchline.gateway.errors import refused
from branchline.grammar import Grammar, GrammarKind
from branchline.sampling_params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Mapping

# By our field: theirs, where the two only differ by name.
_SAME = (
    *("min_tokens", "n", "stop_token_ids", "ignore_eos", "skip_special_tokens", "temperature"),
    *("top_k", "top_p", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty"),
    "seed",
)
# Long lists of one kind: the first fault is enough.
Texts = Annotated[list[str], Field(fail_fast=True)]
Ids = Annotated[list[int], Field(fail_fast=True)]
ManyIds = Annotated[list[Ids], Field(fail_fast=True)]
ANY_OBJECT = json.dumps({"type": "object"})


class Body(BaseModel):
    """A JSON object without surprises: no field that we do not know, no `"5"` for 5."""

    model_config = ConfigDict(extra="forbid", strict=True, protected_namespaces=())


class StreamOptions(Body):
    """What a stream tells besides its text."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None  # padding against eavesdroppers; there is none


class JsonSchema(Body):
    """A named schema."""

    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None  # it is always kept to


class ResponseFormat(Body):
    """The form of an answer."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class GrammarField(Body):
    """A grammar of a kind."""

    kind: GrammarKind
    source: str


class Delivery(Body):
    """How a request is served, whatever it asks."""

    stream: bool | None = None
    cache_salt: str | None = None  # shares cached prefixes only with requests of the same
    priority: int = 0  # higher is served first
    timeout: float | None = None  # seconds


class SamplingFields(Delivery):
    """What a completion and a chat have in common."""

    model: str | None = None
    # Length and end
    max_tokens: int | None = None
    min_tokens: int | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    # The draw
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    # The form: one of them
    response_format: ResponseFormat | None = None
    regex: str | None = None
    grammar: str | GrammarField | None = None  # a text is one of Lark
    stream_options: StreamOptions | None = None
    # Known, and nothing to do for them
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    metadata: dict[str, str] | None = None
    store: Literal[False] | None = None
    service_tier: Literal["auto", "default"] | None = None

    def sampling(self, **changes: Any) -> SamplingParams:
        """The parameters that these fields ask for, with `changes` over them."""
        given = {name: getattr(self, name) for name in _SAME}
        given |= {
            "max_tokens": self.max_tokens,
            "no_stop_trim": self.include_stop_str_in_output,
            "stop": as_texts(self.stop),
            "logit_bias": as_bias(self.logit_bias),
            "grammar": self.constraint(),
        }
        return sampling_params({**given, **changes})

    def constraint(self) -> Grammar | None:
        """What the answer must match."""
        wanted = {
            "response_format": _format_grammar(self.response_format),
            "regex": None if self.regex is None else as_grammar("regex", self.regex),
            "grammar": _given_grammar(self.grammar),
        }
        return only_one(wanted)

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with what it cost."""
        if self.stream_options is None:
            return False
        if not self.stream:
            raise refused("stream_options: only with stream=true", "stream_options")
        return bool(self.stream_options.include_usage)


def sampling_params(given: Mapping[str, Any]) -> SamplingParams:
    """Parameters from fields of which None leaves the default; their rules become refusals."""
    settings: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in given.items()
        if value is not None
    }
    try:
        return SamplingParams(**settings)
    except ValueError as error:
        raise refused(str(error)) from None


def as_texts(stop: str | list[str] | None) -> list[str] | None:
    """Stop strings, of which a single one may come as it is."""
    return [stop] if isinstance(stop, str) else stop


def as_bias(bias: Mapping[str, float] | None) -> dict[int, float] | None:
    """Biases by token id; in JSON an id can only be a text."""
    if bias is None:
        return None
    for token in bias:
        if not (token.isascii() and token.isdecimal() and len(token) < 10):
            raise refused(f"logit_bias[{token!r}]: must be a token id", "logit_bias")
    return {int(token): value for token, value in bias.items()}


def as_grammar(kind: GrammarKind, source: str) -> Grammar:
    """A grammar; refused where it breaks a rule that can be seen from here."""
    try:
        return Grammar(kind, source)
    except ValueError as error:
        raise refused(str(error)) from None


def only_one(wanted: Mapping[str, Grammar | None]) -> Grammar | None:
    """The one constraint that is given."""
    given = {name: grammar for name, grammar in wanted.items() if grammar is not None}
    if len(given) > 1:
        raise refused(f"{' and '.join(given)}: only one of them at a time", next(iter(given)))
    return next(iter(given.values()), None)


def _format_grammar(form: ResponseFormat | None) -> Grammar | None:
    if form is None:
        return None
    if (form.json_schema is not None) != (form.type == "json_schema"):
        raise refused(
            f"response_format: json_schema goes with type json_schema, here it is {form.type}",
            "response_format",
        )
    if form.json_schema is not None:
        return as_grammar("json_schema", json.dumps(form.json_schema.schema_))
    return as_grammar("json_schema", ANY_OBJECT) if form.type == "json_object" else None


def _given_grammar(grammar: str | GrammarField | None) -> Grammar | None:
    if isinstance(grammar, GrammarField):
        return as_grammar(grammar.kind, grammar.source)
    return None if grammar is None else as_grammar("lark", grammar)
