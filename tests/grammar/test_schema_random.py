"""Random schemas: what compiles holds in every output, what does not is an error of the user's."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from branchline.errors import InvalidRequest
from branchline.grammar import Grammar
from branchline.runtime.grammar.guidance import Guidance, GuidanceGrammar

from .vocabularies import byte_vocabulary
from .walks import exactly, judge, sample

VOCABULARY = byte_vocabulary([b'{"', b'": ', b", ", b'", "', b'"}', b"aa", b"10"])
GUIDANCE = Guidance(VOCABULARY)

NAMES = st.sampled_from(["a", "b", "ab", 'q"', "é/~"])
VALUES = st.recursive(
    st.sampled_from([None, True, 0, 1, -3, 2.5, 10, "", "a", "ab", "aé\n", "2024-01-01"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=2),
    max_leaves=3,
)
COUNTS = st.integers(0, 3)
NUMBERS = st.integers(-12, 12) | st.sampled_from([0.5, -1.5, 2.25])
TYPES = st.sampled_from(["null", "boolean", "integer", "number", "string", "array", "object"])
PATTERNS = st.sampled_from(["^a", "b$", "^[ab]*$", "a|^b", "^\\d+$", "é", "^..$", "^(a|ab)(b|)$"])


def _either(part: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.lists(part, min_size=1, max_size=3).map(
        lambda parts: {keyword: value for one in parts for keyword, value in one.items()}
    )


def _with(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    some = st.lists(inner, min_size=1, max_size=3)
    return _either(
        st.one_of(
            st.fixed_dictionaries(
                {}, optional={"items": inner, "minItems": COUNTS, "maxItems": COUNTS}
            ),
            st.fixed_dictionaries(
                {"prefixItems": some}, optional={"items": inner, "minItems": COUNTS}
            ),
            st.fixed_dictionaries(
                {"properties": st.dictionaries(NAMES, inner, max_size=3)},
                optional={
                    "required": st.lists(NAMES, max_size=2, unique=True),
                    "additionalProperties": inner,
                    "patternProperties": st.dictionaries(PATTERNS, inner, max_size=1),
                    "minProperties": COUNTS,
                    "maxProperties": COUNTS,
                },
            ),
            st.fixed_dictionaries({}, optional={"anyOf": some, "allOf": some, "oneOf": some}),
            _PLAIN,
        )
    )


_PLAIN = st.one_of(
    st.fixed_dictionaries({"type": TYPES | st.lists(TYPES, min_size=1, max_size=2, unique=True)}),
    st.fixed_dictionaries({"enum": st.lists(VALUES, min_size=1, max_size=4)}),
    st.fixed_dictionaries({"const": VALUES}),
    st.fixed_dictionaries(
        {}, optional={"minLength": COUNTS, "maxLength": COUNTS, "pattern": PATTERNS}
    ),
    st.fixed_dictionaries(
        {},
        optional={
            "minimum": NUMBERS,
            "maximum": NUMBERS,
            "exclusiveMinimum": NUMBERS,
            "exclusiveMaximum": NUMBERS,
            "multipleOf": st.sampled_from([1, 2, 3, 0.5, 0.1]),
        },
    ),
    st.fixed_dictionaries({"format": st.sampled_from(["date", "time", "ipv4", "uuid", "email"])}),
    st.just({"$ref": "#/$defs/d"}),
)
_ANY = st.recursive(st.booleans() | _either(_PLAIN), _with, max_leaves=6)
SCHEMAS = st.builds(lambda schema, d: schema | {"$defs": {"d": d}}, _with(_ANY), _ANY)


def _compiled(source: str) -> GuidanceGrammar | str:
    try:
        return GUIDANCE.compile(Grammar("json_schema", source))
    except InvalidRequest as error:
        return str(error)


def _outputs(grammar: GuidanceGrammar) -> list[bytes | None]:
    """Some outputs; none of a schema that nothing satisfies, where that showed on the way."""
    rng = random.Random(0)
    with suppress(InvalidRequest):
        return [sample(grammar, VOCABULARY, rng, longest=60) for _ in range(5)]
    return []


def _check(schema: dict[str, Any]) -> None:
    source = json.dumps(schema)
    grammar = _compiled(source)
    if isinstance(grammar, str):
        assert grammar
        assert "llguidance" not in grammar
        return
    validator = judge(source)
    for output in _outputs(grammar):
        if output is not None:
            # What refers to itself without end is more than the judge can follow.
            with suppress(RecursionError):
                validator.validate(exactly(output.decode()))


QUIET = [HealthCheck.too_slow, HealthCheck.filter_too_much]


@settings(max_examples=80, deadline=None, derandomize=True, suppress_health_check=QUIET)
@given(SCHEMAS)
def test_outputs_are_valid(schema: dict[str, Any]) -> None:
    _check(schema)


@pytest.mark.slow
@settings(max_examples=1000, deadline=None, suppress_health_check=QUIET)
@given(SCHEMAS)
def test_outputs_are_valid_at_length(schema: dict[str, Any]) -> None:
    _check(schema)
