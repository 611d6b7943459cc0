"""The JSON-Schema-Test-Suite, draft 2020-12: what is compiled is right, what is not is refused.

The groups are those of the suite (data/LICENSE), which jsonschema's source distribution holds.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path

import pytest

from branchline.errors import InvalidRequest
from branchline.grammar import Grammar
from branchline.runtime.grammar.guidance import Guidance, GuidanceGrammar

from .vocabularies import byte_vocabulary
from .walks import accepts, exactly, judge, sample

SUITE = json.loads((Path(__file__).parent / "data" / "json_schema_2020_12.json").read_text())

# Keywords of this draft, of older ones and of OpenAPI that no output can be held to.
UNSUPPORTED = [
    *("not", "if", "then", "else", "contains", "minContains", "maxContains", "uniqueItems"),
    *("propertyNames", "dependentRequired", "dependentSchemas", "unevaluatedItems"),
    *("unevaluatedProperties", "$dynamicRef", "$dynamicAnchor", "$vocabulary", "nullable"),
    *("dependencies", "$recursiveRef", "$recursiveAnchor", "extends", "disallow", "divisibleBy"),
]
# Why else a group of the suite is refused: a part of the reason.
OTHER_REASONS = [
    "exactly one of its branches",
    "nothing is fetched",
    "schema is false",
    "an object; nothing",
    "control character",
    "a whole number",
    "too many digits",
    "are not disjoint",
    "format is",
    '"$schema" \'http://localhost',
    '["$dynamicAnchor"]',  # of the metaschema
]

VOCABULARY = byte_vocabulary([b'{"', b'": ', b', "', b'"}', b"foo", b"bar", b"true", b'"foo"'])
GUIDANCE = Guidance(VOCABULARY)


def _compiled(schema: object) -> GuidanceGrammar | str:
    """The schema compiled, or why it is refused."""
    try:
        return GUIDANCE.compile(Grammar("json_schema", json.dumps(schema)))
    except InvalidRequest as error:
        return str(error)


def _group(group: dict, samples: int) -> Counter[str]:
    """Compile one group; every text that it accepts or makes must be valid."""
    count: Counter[str] = Counter(groups=1)
    grammar = _compiled(group["schema"])
    if isinstance(grammar, str):
        named = [f'keyword "{word}"' in grammar for word in UNSUPPORTED]
        assert any(named) or any(reason in grammar for reason in OTHER_REASONS), grammar
        return count + Counter(refused=1)
    for test in group["tests"]:
        text = json.dumps(test["data"], ensure_ascii=False)
        accepted = accepts(grammar, VOCABULARY, VOCABULARY.encode(text))
        assert test["valid"] or not accepted, f"{group['schema']} lets {text} pass"
        count[("accepted" if accepted else "narrower") if test["valid"] else "rejected"] += 1
    validator = judge(json.dumps(group["schema"]))
    rng = random.Random(0)
    outputs = [sample(grammar, VOCABULARY, rng) for _ in range(samples)]
    for output in outputs:
        if output is not None:
            validator.validate(exactly(output.decode()))
    count["sampled"] = len(outputs) - outputs.count(None)
    assert count["sampled"] >= samples / 2, "outputs do not come to an end"
    return count


def _run(samples: int) -> dict[str, Counter[str]]:
    return {
        name: sum((_group(group, samples) for group in groups), Counter())
        for name, groups in SUITE.items()
    }


def _show(table: dict[str, Counter[str]]) -> None:
    columns = ["groups", "refused", "accepted", "rejected", "narrower", "sampled"]
    print(f"\n{'file':36}", *(f"{column:>8}" for column in columns))
    for name, count in table.items():
        print(f"{name:36}", *(f"{count[column]:8}" for column in columns))


def test_the_suite(capsys: pytest.CaptureFixture[str]) -> None:
    table = _run(4)
    _show(table)
    total = sum(table.values(), Counter())
    # Of the valid instances, what is not accepted is what this JSON does not write: keys in another
    # order, 1.0 for an integer, quoted local parts.
    assert total["narrower"] < total["accepted"] / 10
    for name in ("additionalProperties", "items", "properties", "required", "type", "enum"):
        assert table[name]["refused"] <= 2, table[name]
    assert total["groups"] - total["refused"] > 160
    assert "unevaluatedItems" in capsys.readouterr().out


@pytest.mark.slow
def test_the_suite_at_length(capsys: pytest.CaptureFixture[str]) -> None:
    table = _run(100)
    with capsys.disabled():
        _show(table)


@pytest.mark.parametrize("keyword", UNSUPPORTED)
@pytest.mark.parametrize(
    "place", ["#", "#/properties/a", "#/$defs/x~1y", "#/anyOf/1/items", "#/patternProperties/^a"]
)
def test_an_unsupported_keyword_is_named_with_its_place(keyword: str, place: str) -> None:
    schema: object = {keyword: {}}
    for step in reversed(place.split("/")[1:]):
        schema = [{}, schema] if step == "1" else {step.replace("~1", "/"): schema}
    reason = _compiled(schema)
    assert isinstance(reason, str)
    assert f'"{keyword}" at {place} ' in reason


def test_the_list_of_unsupported_keywords_is_that_of_the_suite() -> None:
    """Every keyword that the suite has a file for is on the list, or compiles somewhere."""
    files = {name for name in SUITE if "/" not in name}
    whole = {
        name for name in files if all(isinstance(_compiled(g["schema"]), str) for g in SUITE[name])
    }
    assert whole <= {*UNSUPPORTED, "defs", "dynamicRef", "if-then-else", "refRemote", "vocabulary"}
