"""`/generate`: SGLang's shape, over a scripted backend."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from branchline.protocol import Finish, Update, Usage
from branchline.sampling_params import SamplingParams
from tests.gateway.http import send
from tests.gateway.scripted import say, token

if TYPE_CHECKING:
    from tests.gateway.scripted import Scripted


def test_the_parameters(backend: Scripted, url: str) -> None:
    given = {
        "max_new_tokens": 8,
        "min_new_tokens": 1,
        "stop": "x",
        "stop_token_ids": [5],
        "temperature": 0.5,
        "top_p": 0.5,
        "top_k": 3,
        "min_p": 0.1,
        "frequency_penalty": 1,
        "presence_penalty": 1,
        "repetition_penalty": 1.1,
        "ignore_eos": True,
        "skip_special_tokens": False,
        "spaces_between_special_tokens": True,
        "no_stop_trim": True,
        "logit_bias": {"7": 2},
        "sampling_seed": 3,
        "ebnf": 'root ::= "a"',
    }
    assert send(url, "/generate", {"text": "hi", "sampling_params": given}).status == 200
    [asked] = backend.asked
    grammar = asked.params.grammar
    assert grammar is not None
    assert (grammar.kind, grammar.source) == ("ebnf", 'root ::= "a"')
    assert asked.prompt == (("template", "hi"),)
    assert asked.params == SamplingParams(
        max_tokens=8,
        min_tokens=1,
        stop=("x",),
        stop_token_ids=(5,),
        temperature=0.5,
        top_p=0.5,
        top_k=3,
        min_p=0.1,
        frequency_penalty=1,
        presence_penalty=1,
        repetition_penalty=1.1,
        ignore_eos=True,
        skip_special_tokens=False,
        no_stop_trim=True,
        logit_bias={7: 2},
        seed=3,
        grammar=grammar,
    )


def test_one_prompt_one_answer(backend: Scripted, url: str) -> None:
    backend.script = [say("a", "b")]
    answer = send(url, "/generate", {"text": "hi"}).json
    assert (answer["text"], answer["output_ids"]) == ("ab", [100, 101])
    meta = answer["meta_info"]
    assert meta["finish_reason"] == {"type": "stop", "matched": 2}
    assert (meta["prompt_tokens"], meta["cached_tokens"], meta["completion_tokens"]) == (10, 4, 2)
    assert backend.asked[0].params == SamplingParams()


def test_lists_are_answered_in_order(backend: Scripted, url: str) -> None:
    backend.script = [[*say("b", index=1), *say("a", reason="length")], say("c"), say("d")]
    each = [{"n": 2}, {"max_new_tokens": 3}, {}]
    body = {"input_ids": [[1], [2, 3], [4]], "sampling_params": each}
    answers = send(url, "/generate", body).json
    assert [answer["text"] for answer in answers] == ["a", "b", "c", "d"]
    assert answers[0]["meta_info"]["finish_reason"] == {"type": "length", "length": 1}
    assert [asked.prompt for asked in backend.asked] == [
        (("tokens", (1,)),),
        (("tokens", (2, 3)),),
        (("tokens", (4,)),),
    ]
    assert [asked.params.max_tokens for asked in backend.asked] == [128, 3, 128]


def test_choices_of_lists_that_stream_are_numbered_through(backend: Scripted, url: str) -> None:
    """Prompts may have different numbers of choices here."""
    backend.script = [[*say("a"), *say("b", index=1)], say("c"), [*say("d"), *say("e", index=1)]]
    each = [{"n": 2}, {}, {"n": 2}]
    body = {"text": ["x", "y", "z"], "sampling_params": each, "stream": True}
    *events, done = send(url, "/generate", body).events
    assert done == "[DONE]"
    texts = {event["index"]: event["text"] for event in events}
    assert texts == dict(enumerate("abcde"))


def test_a_stream_tells_all_of_the_text_each_time(backend: Scripted, url: str) -> None:
    backend.script = [say("a", "b")]
    *events, done = send(url, "/generate", {"text": "hi", "stream": True}).events
    assert done == "[DONE]"
    assert [event["text"] for event in events] == ["a", "ab", "ab"]
    assert [event["output_ids"] for event in events] == [[100], [100, 101], [100, 101]]
    assert [event["meta_info"]["finish_reason"] for event in events][:2] == [None, None]
    assert "index" not in events[0]


def test_logprobs(backend: Scripted, url: str) -> None:
    scored = token("a", -0.5, ("a", -0.5), ("b", float("-inf")))
    prompt = (token("x", None), token("y", -2.0))
    ended = {"finish": Finish("length"), "usage": Usage(2, 0, 1)}
    backend.script = [[Update("", 0, "a", (9,), (scored,), prompt, **ended)]]
    body = {
        "text": "xy",
        "return_logprob": True,
        "logprob_start_len": 0,
        "top_logprobs_num": 2,
        "return_text_in_logprobs": True,
    }
    meta = send(url, "/generate", body).json["meta_info"]
    assert meta["input_token_logprobs"] == [[None, 9, "x"], [-2.0, 9, "y"]]
    assert meta["output_token_logprobs"] == [[-0.5, 9, "a"]]
    assert meta["output_top_logprobs"] == [[[-0.5, 9, "a"], [-9999.0, 9, "b"]]]
    assert meta["input_top_logprobs"] == [None, None]
    params = backend.asked[0].params
    assert (params.logprob_start, params.top_logprobs, params.logprob_texts) == (0, 2, True)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "text or input_ids"),
        ({"text": "a", "input_ids": [1]}, "text or input_ids"),
        ({"text": []}, "empty"),
        ({"text": "a", "sampling_params": [{}, {}]}, "2 for 1"),
        ({"text": "a", "sampling_params": {"max_tokens": 5}}, "sampling_params.max_tokens"),
        ({"text": "a", "sampling_params": {"regex": "a", "ebnf": "b"}}, "only one"),
        ({"text": "a", "image_data": "x"}, "image_data"),
    ],
)
def test_what_is_refused(backend: Scripted, url: str, body: dict, words: str) -> None:
    reply = send(url, "/generate", body)
    assert reply.status == 400
    assert words in reply.error["message"]
    assert not backend.asked
