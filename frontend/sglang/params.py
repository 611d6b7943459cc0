"""The sampling parameters that SGLang's `gen` and `run` have beyond the language's own.

They travel from a gen to the `Endpoint` in a subclass of `SamplingParams`; what goes on from there
to the runtime is plain again.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from branchline.constraint import checked, ended, only_one, regex_grammar, schema_grammar
from branchline.errors import InvalidRequest
from branchline.sampling_params import SamplingParams
from branchline.sglang.regexes import JSON_STRING, REGEX_BOOL, REGEX_FLOAT, REGEX_INT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from branchline.grammar import Grammar

# SGLang's own expression for text has no punctuation in it; this is any JSON string.
BY_DTYPE = {"str": JSON_STRING, "int": REGEX_INT, "float": REGEX_FLOAT, "bool": REGEX_BOOL}
# What stops leave of SGLang's expressions, whose blanks and new lines are such stops.
NUMBERS = {name: BY_DTYPE[name].removesuffix(r"[ \n]*") for name in ("int", "float")}
NUMBER_STOPS = (" ", "\n")  # what ends a number besides the stops that are given


@dataclass(frozen=True, slots=True, kw_only=True)
class Params(SamplingParams):
    """`SamplingParams`, and what the text must be like."""

    dtype: str | None = None  # one of BY_DTYPE; it comes before all others
    regex: str | None = None
    json_schema: str | None = None
    ebnf: str | None = None
    structural_tag: str | None = None
    stop_regex: tuple[str, ...] = ()  # a match ends the text and stays in it

    def __post_init__(self) -> None:
        self.plain()  # whose rules hold for these too

    @classmethod
    def of(cls, params: SamplingParams, **added: Any) -> Params:
        """Parameters with these added."""
        return cls(**_own(params), **added)

    def plain(self) -> SamplingParams:
        """Without what is added here, but with the grammar that it asks for, and a number's stops.

        Raises:
            InvalidRequest: there are several grammars, or one is none.
        """
        params = SamplingParams(**_own(self))
        if self.dtype in NUMBERS:
            stop = tuple(dict.fromkeys(params.stop + NUMBER_STOPS))
            grammar = regex_grammar(ended(NUMBERS[self.dtype], stop))
            return replace(params, stop=stop, grammar=grammar)
        return replace(params, grammar=self.grammar or self._asked())

    def _asked(self) -> Grammar | None:
        if self.dtype is not None:
            return regex_grammar(BY_DTYPE[self.dtype])
        names = ("regex", "json_schema", "ebnf", "structural_tag")
        only_one({name: getattr(self, name) for name in names})
        if self.regex is not None:
            return regex_grammar(self.regex)
        if self.json_schema is not None:
            return schema_grammar(self.json_schema)
        if self.ebnf is not None:
            return checked("ebnf", self.ebnf)
        return (
            None if self.structural_tag is None else checked("structural_tag", self.structural_tag)
        )


def _own(params: SamplingParams) -> dict[str, Any]:
    return {field.name: getattr(params, field.name) for field in fields(SamplingParams)}


def dtype_name(dtype: type | str | None) -> str | None:
    """A dtype by its name.

    Raises:
        InvalidRequest: it is none of SGLang's four.
    """
    name = dtype.__name__ if isinstance(dtype, type) else dtype
    if name is not None and name not in BY_DTYPE:
        raise InvalidRequest(f"dtype={dtype!r}: must be one of {', '.join(BY_DTYPE)}")
    return name


def patterns(stop_regex: str | Sequence[str] | None) -> tuple[str, ...] | None:
    """`stop_regex` as a tuple; None stays None, which is "as the run has it"."""
    if stop_regex is None:
        return None
    return (stop_regex,) if isinstance(stop_regex, str) else tuple(stop_regex)
