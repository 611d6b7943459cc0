"""Grammars on the real model: a form whose text is mostly forced, in half the steps."""

from __future__ import annotations

import json

import pytest

from branchline.grammar import Grammar
from branchline.protocol import Generate
from branchline.runtime.admission import Admission
from branchline.runtime.assembly import _compiler
from branchline.runtime.sizing import Limits
from branchline.sampling_params import SamplingParams

from .runs import Runs

SCHEMA = {
    "type": "object",
    "properties": {
        "name_of_the_city": {"type": "string", "maxLength": 12},
        "country_of_origin": {"type": "string", "maxLength": 12},
        "population_in_millions": {"type": "integer", "minimum": 0, "maximum": 99},
        "is_capital_city": {"type": "boolean"},
    },
    "required": [
        "name_of_the_city",
        "country_of_origin",
        "population_in_millions",
        "is_capital_city",
    ],
    "additionalProperties": False,
}
FORM = Grammar("json_schema", json.dumps(SCHEMA))
PROMPT = (("program", "Paris is the capital of France, with 2 million people. As JSON:\n"),)


@pytest.fixture(scope="module")
def grammar(smollm2):
    compiler = _compiler(smollm2)
    yield compiler.compile(FORM).result(60)
    compiler.close()


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("params", [{"temperature": 0.0}, {"temperature": 1.0, "seed": 7}], ids=str)
def test_a_form_takes_under_half_the_steps_and_has_the_same_tokens(
    smollm2, grammar, overlap, params
):
    runs = Runs(smollm2, Limits(pages=2000, max_context=500), overlap=overlap)
    admission = Admission(smollm2.tokenizer, smollm2.card)
    steps, outputs, texts = [], [], []
    for jump_forward in (False, True):
        given = SamplingParams(grammar=FORM, jump_forward=jump_forward, max_tokens=150, **params)
        job = admission.generation(b"", Generate("r", PROMPT, given))
        admission.constrain(job, grammar)
        before = runs.loop.counters.steps
        (request,) = job.requests
        runs.run([request])
        steps.append(runs.loop.counters.steps - before)
        outputs.append(runs.ids[request])
        texts.append(request.text.text)
        usage = runs.ended[request].usage
        assert usage.forced_tokens == request.forced_tokens
    assert usage.forced_tokens >= 0.6 * usage.completion_tokens
    assert outputs[0] == outputs[1]
    assert 2 * steps[1] < steps[0]
    values = json.loads(texts[1])
    assert list(values) == list(SCHEMA["properties"])
