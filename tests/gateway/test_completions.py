"""`/v1/completions` over a scripted backend: what reaches it, and what is made of its answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import openai
import pytest

from branchline.protocol import Finish, Update, Usage
from branchline.sampling_params import SamplingParams
from tests.gateway.http import send
from tests.gateway.scripted import say, token

if TYPE_CHECKING:
    from tests.gateway.scripted import Scripted

PATH = "/v1/completions"


def test_every_field_reaches_the_runtime(backend: Scripted, url: str) -> None:
    body = {
        "model": "toy",
        "prompt": "Once",
        "max_tokens": 9,
        "min_tokens": 2,
        "n": 3,
        "best_of": 3,
        "stop": ["a", "b"],
        "stop_token_ids": [5],
        "ignore_eos": True,
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
        "temperature": 0,
        "top_p": 0.5,
        "top_k": 7,
        "min_p": 0.1,
        "repetition_penalty": 1.5,
        "frequency_penalty": 0.25,
        "presence_penalty": -1,
        "logit_bias": {"3": -100},
        "seed": 11,
        "regex": "x+",
        "cache_salt": "mine",
        "priority": 4,
        "timeout": 2.5,
        "user": "somebody",
        "metadata": {"a": "b"},
        "store": False,
        "service_tier": "auto",
    }
    backend.script = [[*say("x", index=0), *say("y", index=1), *say("z", index=2)]]
    assert send(url, PATH, body).status == 200
    [asked] = backend.asked
    assert asked.prompt == (("template", "Once"),)
    assert (asked.cache_salt, asked.priority, asked.timeout) == ("mine", 4, 2.5)
    assert not asked.stream
    grammar = asked.params.grammar
    assert grammar is not None
    assert (grammar.kind, grammar.source) == ("regex", "x+")
    assert asked.params == SamplingParams(
        max_tokens=9,
        min_tokens=2,
        n=3,
        stop=("a", "b"),
        stop_token_ids=(5,),
        ignore_eos=True,
        no_stop_trim=True,
        skip_special_tokens=False,
        temperature=0,
        top_p=0.5,
        top_k=7,
        min_p=0.1,
        repetition_penalty=1.5,
        frequency_penalty=0.25,
        presence_penalty=-1,
        logit_bias={3: -100},
        seed=11,
        grammar=grammar,
    )


def test_null_is_the_default(backend: Scripted, url: str) -> None:
    nulls = dict.fromkeys(["stop", "n", "temperature", "seed", "logit_bias", "stream_options"])
    assert send(url, PATH, {"prompt": "x", "max_tokens": None, **nulls}).status == 200
    assert backend.asked[0].params == SamplingParams(max_tokens=16)


@pytest.mark.parametrize(
    ("prompt", "pieces"),
    [
        ("hi", [("template", "hi")]),
        (["hi", "ho"], [("template", "hi"), ("template", "ho")]),
        ([1, 2], [("tokens", (1, 2))]),
        ([[1, 2], [3]], [("tokens", (1, 2)), ("tokens", (3,))]),
    ],
)
def test_prompts_come_in_four_forms(
    backend: Scripted, client: openai.OpenAI, prompt: list, pieces: list
) -> None:
    backend.script = [say("a"), say("b")]
    answer = client.completions.create(model="toy", prompt=prompt)
    assert [asked.prompt for asked in backend.asked] == [(piece,) for piece in pieces]
    assert [choice.text for choice in answer.choices] == ["a", "b"][: len(pieces)]
    assert [choice.index for choice in answer.choices] == list(range(len(pieces)))


def test_special_tokens_of_a_prompt_may_be_plain(backend: Scripted, url: str) -> None:
    assert send(url, PATH, {"prompt": "<|im_end|>", "parse_special": False}).status == 200
    assert backend.asked[0].prompt == (("program", "<|im_end|>"),)


@pytest.mark.parametrize("stream", [False, True])
def test_choices_of_prompts_are_numbered_through(
    backend: Scripted, client: openai.OpenAI, stream: bool
) -> None:
    backend.script = [
        [*say("a", "b", index=1, cached=3), *say("c", index=0, reason="length", cached=2)],
        [*say("d", index=0, prompt_tokens=20), *say("e", "f", index=1, prompt_tokens=20)],
    ]
    texts = dict.fromkeys(range(4), "")
    reasons: dict[int, str] = {}
    usages = []
    options = {"stream_options": {"include_usage": True}} if stream else {}
    answer = client.completions.create(
        model="toy", prompt=["x", "y"], n=2, stream=stream, **options
    )
    for chunk in answer if stream else [answer]:
        usages.append(chunk.usage)
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            if choice.finish_reason is not None:
                assert choice.index not in reasons, "ends once"
                reasons[choice.index] = choice.finish_reason
    assert texts == {0: "c", 1: "ab", 2: "d", 3: "ef"}
    assert reasons == {0: "length", 1: "stop", 2: "stop", 3: "stop"}
    *others, usage = usages
    assert not any(others)
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (30, 6, 36)
    assert usage.prompt_tokens_details.cached_tokens == 2 + 4  # of each prompt the least


def test_a_stream_is_events(backend: Scripted, url: str) -> None:
    backend.script = [say('a"\n', "", "\u2028é")]
    reply = send(url, PATH, {"prompt": "x", "stream": True})
    *chunks, done = reply.events
    assert done == "[DONE]"
    assert [chunk["choices"][0]["text"] for chunk in chunks] == ['a"\n', "\u2028é", ""]
    assert {chunk["id"] for chunk in chunks} == {chunks[0]["id"]}
    assert all("usage" not in chunk for chunk in chunks)
    assert reply.headers["cache-control"] == "no-cache"
    assert "content-length" not in reply.headers


LOGPROBS = [
    Update(
        "",
        text="",
        prompt_logprobs=(token("On", None), token("ce", -1.5, ("ce", -1.5), ("to", -2.0))),
    ),
    Update("", text="", ids=(4,), logprobs=(token(r"bytes:\xc3", -0.5, (r"bytes:\xc3", -0.5)),)),
    Update("", text="é", ids=(5,), logprobs=(token(r"bytes:\xa9", float("-inf")),)),
    Update("", text="!", ids=(6,), logprobs=(token("!", -0.25, ("!", -0.25), ("?", -3.0)),)),
    Update(
        "",
        ids=(2,),
        logprobs=(token("<end>", -0.1),),
        finish=Finish("stop", 2),
        usage=Usage(2, 0, 4),
    ),
]


@pytest.mark.parametrize("stream", [False, True])
def test_echo_with_logprobs(backend: Scripted, client: openai.OpenAI, stream: bool) -> None:
    backend.script = [LOGPROBS]
    answer = client.completions.create(
        model="toy", prompt="Once", echo=True, logprobs=2, stream=stream
    )
    text, tokens, logprobs, offsets, top = "", [], [], [], []
    for chunk in answer if stream else [answer]:
        for choice in chunk.choices:
            text += choice.text
            tokens += choice.logprobs.tokens
            logprobs += choice.logprobs.token_logprobs
            offsets += choice.logprobs.text_offset
            top += choice.logprobs.top_logprobs
    assert text == "Onceé!"
    assert tokens == ["On", "ce", r"bytes:\xc3", r"bytes:\xa9", "!"]  # not the end
    assert logprobs == [None, -1.5, -0.5, -9999.0, -0.25]
    assert offsets == [0, 2, 4, 4, 5]
    assert top[1] == {"ce": -1.5, "to": -2.0}
    assert top[0] is None
    params = backend.asked[0].params
    assert (params.top_logprobs, params.logprob_start, params.logprob_texts) == (2, 0, True)


def test_echo_of_ids_reads_as_the_runtime_says(backend: Scripted, client: openai.OpenAI) -> None:
    backend.script = [LOGPROBS]
    answer = client.completions.create(model="toy", prompt=[7, 8], echo=True)
    assert answer.choices[0].text == "Onceé!"
    assert answer.choices[0].logprobs is None


def test_echo_of_a_text_costs_nothing(backend: Scripted, client: openai.OpenAI) -> None:
    backend.script = [say("!")]
    answer = client.completions.create(model="toy", prompt="Once", echo=True)
    assert answer.choices[0].text == "Once!"
    assert backend.asked[0].params.logprob_start is None


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({}, "prompt", "required"),
        ({"prompt": []}, "prompt", "empty"),
        ({"prompt": 5}, "prompt", "string"),
        ({"prompt": [1, "a"]}, "prompt", "integer"),
        ({"prompt": "x", "max_tokens": "5"}, "max_tokens", "integer"),
        ({"prompt": "x", "max_tokens": -1}, "max_tokens", "at least 0"),
        ({"prompt": "x", "temperature": -0.5}, "temperature", "-0.5"),
        ({"prompt": "x", "temperature": float("nan")}, "temperature", "nan"),
        ({"prompt": "x", "stop": [""]}, None, "empty"),
        ({"prompt": "x", "suffix": "y"}, "suffix", "supported"),
        ({"prompt": "x", "n": 2, "best_of": 3}, "best_of", "n=2"),
        ({"prompt": "x", "logit_bias": {"cat": 1}}, "logit_bias", "token id"),
        ({"prompt": "x", "logprobs": 1000}, "top_logprobs", "at most"),
        ({"prompt": "x", "store": True}, "store", "False"),
        ({"prompt": "x", "regex": "a", "grammar": "start: /a/"}, "regex", "only one"),
        ({"prompt": "x", "response_format": {"type": "json_schema"}}, "response_format", "json_s"),
        ({"prompt": "x", "stream_options": {"include_usage": True}}, "stream_options", "stream"),
        ({"prompt": "x", "timeout": 0}, "timeout", "above 0"),
        ({"prompt": "x", "grammar": {"kind": "yacc", "source": ""}}, "grammar", "regex"),
    ],
)
def test_what_is_refused_names_the_field(
    backend: Scripted, url: str, body: dict, param: str | None, words: str
) -> None:
    reply = send(url, PATH, body)
    assert reply.status == 400
    assert reply.error["param"] == param
    assert words.lower() in reply.error["message"].lower()
    assert not backend.asked


def test_a_wrong_model_is_not_found(backend: Scripted, client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match=r"gpt-5.*'toy'"):
        client.completions.create(model="gpt-5", prompt="x")
    assert not backend.asked


@pytest.mark.parametrize(
    ("form", "kind", "source"),
    [
        ({"regex": "a+"}, "regex", "a+"),
        ({"grammar": 'start: "a"'}, "lark", 'start: "a"'),
        ({"grammar": {"kind": "ebnf", "source": 'root ::= "a"'}}, "ebnf", 'root ::= "a"'),
        ({"response_format": {"type": "json_object"}}, "json_schema", '{"type": "object"}'),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"enum": [1]}}}},
            "json_schema",
            '{"enum": [1]}',
        ),
    ],
)
def test_forms(backend: Scripted, url: str, form: dict, kind: str, source: str) -> None:
    assert send(url, PATH, {"prompt": "x", **form}).status == 200
    grammar = backend.asked[0].params.grammar
    assert grammar is not None
    assert (grammar.kind, grammar.source) == (kind, source)


def test_a_wish_that_was_not_met_is_told(backend: Scripted, url: str) -> None:
    note = "the grammar ended before min_tokens"
    backend.script = [
        [Update("", text="x", finish=Finish("stop", note=note), usage=Usage(1, 0, 1))]
    ]
    for stream in (False, True):
        reply = send(url, PATH, {"prompt": "x", "stream": stream})
        answer = reply.events[0] if stream else reply.json
        assert answer["choices"][0]["note"] == note
        reply = send(url, "/generate", {"text": "x", "stream": stream})
        answer = reply.events[0] if stream else reply.json
        assert answer["meta_info"]["finish_reason"]["note"] == note
    messages = [{"role": "user", "content": "x"}]
    chat = "/v1/chat/completions"
    assert send(url, chat, {"messages": messages}).json["choices"][0]["note"] == note
    *_, last, _ = send(url, chat, {"messages": messages, "stream": True}).events
    assert last["choices"][0]["note"] == note
