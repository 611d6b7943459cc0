"""From OpenAI's client to a real model and back, on one runtime."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import jsonschema
import openai
import pytest

from branchline import eventloop
from branchline.gateway.app import create_app
from branchline.gateway.server import serving
from branchline.protocol import Generate
from branchline.runtime.engine import Engine
from branchline.sampling_params import SamplingParams
from tests.gateway.http import send

if TYPE_CHECKING:
    from collections.abc import Iterator

    from branchline.protocol import Prompt

FRANCE = "The capital of France is"
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
CITY = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "people": {"type": "integer", "minimum": 1, "maximum": 99},
        "old": {"type": "boolean"},
    },
    "required": ["name", "people", "old"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def engine(smollm2_path: Any) -> Iterator[Engine]:
    with Engine(str(smollm2_path), kv_memory="64MiB", check_invariants=True) as engine:
        yield engine


@pytest.fixture(scope="module")
def url(engine: Engine) -> Iterator[str]:
    with serving(create_app(engine)) as server:
        yield server.url


@pytest.fixture
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=url + "/v1", api_key="any", max_retries=0) as client:
        yield client


@pytest.fixture
def model(engine: Engine) -> str:
    return engine.card.name


async def _continued(engine: Engine, prompt: Prompt, params: SamplingParams) -> str:
    asked = Generate(engine.new_rid(), prompt, params, stream=False)
    return "".join([update.text async for update in engine.generate(asked)])


def test_completions(engine: Engine, client: openai.OpenAI, model: str) -> None:
    params = SamplingParams(max_tokens=12, temperature=0.0)
    [wanted] = engine.generate_text(FRANCE, params)
    options: dict[str, Any] = {"model": model, "max_tokens": 12, "temperature": 0}
    whole = client.completions.create(prompt=FRANCE, **options)
    assert whole.choices[0].text == wanted.text
    assert whole.choices[0].finish_reason == "length"
    assert whole.usage.completion_tokens == 12
    stream = client.completions.create(
        prompt=FRANCE, stream=True, stream_options={"include_usage": True}, **options
    )
    *chunks, last = stream
    assert "".join(chunk.choices[0].text for chunk in chunks) == wanted.text
    assert len(chunks) > 6, "as the tokens come"
    assert last.usage.prompt_tokens == whole.usage.prompt_tokens == wanted.usage.prompt_tokens
    # All but the last token, whose logits are wanted
    assert last.usage.prompt_tokens_details.cached_tokens == last.usage.prompt_tokens - 1


def test_logprobs_read_as_the_text(engine: Engine, client: openai.OpenAI, model: str) -> None:
    params = SamplingParams(max_tokens=6, temperature=0.0, top_logprobs=2)
    prompt = "Écoute 🦙, the capital"
    [wanted] = engine.generate_text(prompt, params)
    answer = client.completions.create(
        model=model, prompt=prompt, max_tokens=6, temperature=0, logprobs=2, echo=True
    )
    [choice] = answer.choices
    scores = choice.logprobs
    count = answer.usage.prompt_tokens
    assert choice.text == prompt + wanted.text
    assert scores.token_logprobs[0] is None
    assert scores.token_logprobs[count:] == pytest.approx(
        [token.logprob for token in wanted.logprobs], abs=1e-4
    )
    assert len(scores.tokens) == count + 6
    assert any(token.startswith("bytes:") for token in scores.tokens), "a llama is several tokens"
    offsets = scores.text_offset
    for token, start, end in zip(scores.tokens, offsets, offsets[1:], strict=False):
        if not token.startswith("bytes:"):
            assert choice.text[start:end] == token
    chat = client.chat.completions.create(
        model=model, messages=QUESTION, temperature=0, logprobs=True, top_logprobs=3
    )
    said = chat.choices[0].message.content
    content = chat.choices[0].logprobs.content
    assert bytes(byte for token in content for byte in token.bytes).decode() == said
    for token in content:
        assert token.top_logprobs[0].token == token.token, "greedy takes the likeliest"
        assert len(token.top_logprobs) == 3


def test_a_text_is_scored(engine: Engine, client: openai.OpenAI, model: str) -> None:
    """As evaluations ask: nothing is generated, the prompt's tokens are told."""
    answer = client.completions.create(
        model=model, prompt=[FRANCE, FRANCE + " Paris"], max_tokens=0, echo=True, logprobs=1
    )
    short, long = (choice.logprobs for choice in answer.choices)
    assert answer.choices[1].text == "".join(long.tokens) == FRANCE + " Paris"
    assert long.token_logprobs[1:-1] == pytest.approx(short.token_logprobs[1:], abs=1e-4)
    params = SamplingParams(max_tokens=1, temperature=0.0, logprobs=True)
    [paris] = engine.generate_text(FRANCE, params)
    assert paris.text == " Paris"
    assert long.token_logprobs[-1] == pytest.approx(paris.logprobs[0].logprob, abs=1e-4)
    assert answer.usage.completion_tokens == 0


def test_a_request_may_take_so_long(url: str) -> None:
    body = {"prompt": FRANCE, "max_tokens": 900, "ignore_eos": True, "timeout": 0.05}
    reply = send(url, "/v1/completions", body)
    assert reply.status == 408
    assert "0.05" in reply.error["message"]


def test_a_chat_is_the_models_own_template(
    engine: Engine, client: openai.OpenAI, model: str
) -> None:
    system, question = "You speak like a <|im_end|> pirate.", "Who are you?"
    prompt: Prompt = (
        ("template", "<|im_start|>system\n"),
        ("program", system),
        ("template", "<|im_end|>\n<|im_start|>user\n"),
        ("program", question),
        ("template", "<|im_end|>\n<|im_start|>assistant\n"),
    )
    params = SamplingParams(max_tokens=10, temperature=0.0)
    wanted = eventloop.run(_continued(engine, prompt, params))
    messages: list[Any] = [
        {"role": "system", "content": system},
        {"role": "user", "content": question},
    ]
    options: dict[str, Any] = {"model": model, "messages": messages, "temperature": 0}
    whole = client.chat.completions.create(max_tokens=10, **options)
    assert whole.choices[0].message.content == wanted
    assert whole.usage.prompt_tokens_details.cached_tokens == whole.usage.prompt_tokens - 1
    stream = client.chat.completions.create(max_tokens=10, stream=True, **options)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == wanted


def test_n_seed_and_stop(client: openai.OpenAI, model: str) -> None:
    options: dict[str, Any] = {"model": model, "prompt": "Once upon a time", "max_tokens": 12}
    first = client.completions.create(n=3, seed=5, **options)
    texts = [choice.text for choice in first.choices]
    assert len(set(texts)) == 3
    again = client.completions.create(n=3, seed=5, **options)
    assert [choice.text for choice in again.choices] == texts
    whole = client.completions.create(temperature=0, **options).choices[0].text
    stop = whole[8:11]
    cut = client.completions.create(temperature=0, stop=[stop], **options).choices[0]
    assert cut.text == whole[: whole.index(stop)]
    assert cut.finish_reason == "stop"


@pytest.mark.parametrize("stream", [False, True])
def test_json_schema(client: openai.OpenAI, model: str, stream: bool) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY}}
    answer: Any = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Describe a city."}],
        response_format=form,
        seed=1,
        stream=stream,
    )
    if stream:
        text = "".join(chunk.choices[0].delta.content or "" for chunk in answer)
    else:
        text = answer.choices[0].message.content
        assert answer.usage.completion_tokens_details.forced_tokens > 0
    jsonschema.validate(json.loads(text), CITY)


def test_tools_there_and_back(client: openai.OpenAI, model: str) -> None:
    function = {"name": "weather", "description": "of a city", "parameters": CITY}
    tools: Any = [{"type": "function", "function": function}]
    messages: list[Any] = [{"role": "user", "content": "How is the weather in Paris?"}]
    options: dict[str, Any] = {"model": model, "tools": tools, "temperature": 0}
    answer = client.chat.completions.create(
        messages=messages, tool_choice="required", parallel_tool_calls=False, **options
    )
    [choice] = answer.choices
    assert choice.finish_reason == "tool_calls"
    [call] = choice.message.tool_calls
    assert call.function.name == "weather"
    jsonschema.validate(json.loads(call.function.arguments), CITY)
    messages += [choice.message, {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
    answer = client.chat.completions.create(messages=messages, max_tokens=20, **options)
    assert answer.choices[0].message.content or answer.choices[0].message.tool_calls
    stream = client.chat.completions.create(
        messages=messages[:1],
        tool_choice={"type": "function", "function": {"name": "weather"}},
        stream=True,
        **options,
    )
    calls = [call for chunk in stream for call in chunk.choices[0].delta.tool_calls or []]
    assert [one.function.name for one in calls] == ["weather"]
    jsonschema.validate(json.loads(calls[0].function.arguments), CITY)


def test_what_only_the_model_can_refuse(url: str, engine: Engine) -> None:
    limit = engine.card.context_length
    for body, words in (
        ({"prompt": [-1]}, "vocabulary"),
        ({"prompt": [10**6]}, "vocabulary"),
        ({"prompt": "x", "stop_token_ids": [10**6]}, "vocabulary"),
        ({"prompt": [5] * limit}, f"the context is {limit}"),
        ({"prompt": "x", "regex": "("}, "regex"),
        ({"prompt": "x", "grammar": "nonsense"}, "lark"),
    ):
        reply = send(url, "/v1/completions", body)
        assert reply.status == 400
        assert words in reply.error["message"]
    assert send(url, "/health_generate").status == 200


def test_a_repeated_prefix_of_a_chat_is_cached(client: openai.OpenAI, model: str) -> None:
    messages: list[Any] = [{"role": "user", "content": "Tell me of three rivers. " * 20}]
    options: dict[str, Any] = {"model": model, "temperature": 0, "max_tokens": 4}
    answer = client.chat.completions.create(messages=messages, **options)
    messages += [answer.choices[0].message, {"role": "user", "content": "And lakes?"}]
    usage = client.chat.completions.create(messages=messages, **options).usage
    assert usage.prompt_tokens_details.cached_tokens >= answer.usage.prompt_tokens
