"""The sampling parameters that SGLang's `gen` and `run` have beyond the language's own.

They travel from a gen to the `Endpoint` in a subclass of `SamplingParams`; what goes on from there
to the runtime is plain again.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from branchline.errors import InvalidRequest
from branchline.sampling_params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Sequence

DTYPES = ("str", "int", "float", "bool")
NUMBER_STOPS = (" ", "\n")  # what ends a number besides the stops that are given


@dataclass(frozen=True, slots=True, kw_only=True)
class Params(SamplingParams):
    """`SamplingParams`, and what the text must be like."""

    dtype: str | None = None  # one of DTYPES
    regex: str | None = None
    json_schema: str | None = None
    stop_regex: tuple[str, ...] = ()  # a match ends the text and stays in it

    def __post_init__(self) -> None:
        self.plain()  # whose rules hold for these too

    @classmethod
    def of(cls, params: SamplingParams, **added: Any) -> Params:
        """Parameters with these added."""
        return cls(**_own(params), **added)

    def plain(self) -> SamplingParams:
        """Without what is added here, but with the stops that a number has."""
        params = SamplingParams(**_own(self))
        if self.dtype in ("int", "float"):
            params = replace(params, stop=tuple(dict.fromkeys(params.stop + NUMBER_STOPS)))
        return params


def _own(params: SamplingParams) -> dict[str, Any]:
    return {field.name: getattr(params, field.name) for field in fields(SamplingParams)}


def dtype_name(dtype: type | str | None) -> str | None:
    """A dtype by its name.

    Raises:
        InvalidRequest: it is none of SGLang's four.
    """
    name = dtype.__name__ if isinstance(dtype, type) else dtype
    if name is not None and name not in DTYPES:
        raise InvalidRequest(f"dtype={dtype!r}: must be one of {', '.join(DTYPES)}")
    return name


def patterns(stop_regex: str | Sequence[str] | None) -> tuple[str, ...] | None:
    """`stop_regex` as a tuple; None stays None, which is "as the run has it"."""
    if stop_regex is None:
        return None
    return (stop_regex,) if isinstance(stop_regex, str) else tuple(stop_regex)
