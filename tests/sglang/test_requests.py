"""Requests without a program, and the models behind OpenAI's API."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

import branchline as bl
import branchline.sglang as sgl
from branchline.sglang import requests, runtimes
from branchline.sglang.backend import Endpoint
from branchline.sglang.constraints import NotAsPromised

from ..frontend.fake_openai import serving

if TYPE_CHECKING:
    from collections.abc import Iterator


class Owned(bl.Mock):
    """A mock that is started by its settings, and closed."""

    address, pid = "ipc://mine", 7
    started: dict[str, Any]
    closed = False

    def __init__(self, **settings: Any) -> None:
        super().__init__(lambda prompt: f"after {prompt} and")
        Owned.started = settings

    def close(self) -> None:
        self.closed = True


@pytest.fixture(autouse=True)
def _owned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtimes.branchline, "Engine", Owned)
    monkeypatch.setattr(runtimes.branchline, "Runtime", Owned)


@pytest.fixture
def engine() -> Iterator[sgl.Engine]:
    with sgl.Engine("smollm2", context_length=2048) as engine:
        yield engine
    assert engine.endpoint.runtime.closed


def test_an_engine_answers_prompts(engine: sgl.Engine) -> None:
    assert Owned.started == {"model": "smollm2", "max_context": 2048}
    one = engine.generate("A", {"max_new_tokens": 2, "temperature": 0})
    assert (one["text"], one["meta_info"]["completion_tokens"]) == ("after A", 2)
    several = engine.generate(["A", "B"], {"max_new_tokens": 2, "n": 2})
    assert [answer["text"] for answer in several] == ["after A"] * 2 + ["after B"] * 2
    meta = engine.generate("A", return_logprob=True, top_logprobs_num=2)["meta_info"]
    assert len(meta["output_top_logprobs"][0]) == 2
    assert asyncio.run(engine.async_generate("A", {"stop": " A"}))["text"] == "after"


def test_an_engine_streams(engine: sgl.Engine) -> None:
    texts = [piece["text"] for piece in engine.generate("A", stream=True)]
    assert list(dict.fromkeys(texts)) == ["after", "after A", "after A and"]

    async def read() -> list[str]:
        pieces = await engine.async_generate("A", {"max_new_tokens": 2}, stream=True)
        return [piece["text"] async for piece in pieces]

    assert asyncio.run(read())[-1] == "after A"


def test_leaving_a_stream_aborts_it(engine: sgl.Engine) -> None:
    pieces = engine.generate("A", stream=True)
    next(pieces)
    pieces.close()
    assert len(engine.endpoint.runtime.aborted) == 1


def test_a_wrong_parameter_is_named(engine: sgl.Engine) -> None:
    with pytest.raises(bl.InvalidRequest, match="temprature"):
        engine.generate("A", {"temprature": 0})
    with pytest.raises(bl.InvalidRequest, match="lora_path"):
        engine.generate("A", lora_path="x")
    with pytest.raises(bl.InvalidRequest, match="only one text"):
        next(engine.generate("A", {"n": 2}, stream=True))
    with pytest.raises(bl.InvalidRequest, match="embeddings"):
        engine.encode("A")


def test_promises_hold_for_requests_too(engine: sgl.Engine) -> None:
    params = {"regex": r"after \w+ and", "stop_regex": "never"}
    assert engine.generate("A", params)["text"] == "after A and"
    with pytest.raises(ValueError, match="does not match"):
        engine.generate("A", {"regex": "before"})


def test_a_runtime_is_a_backend_and_answers_in_json() -> None:
    runtime = sgl.Runtime(model_path="smollm2", port=30000, launch_timeout=9.0)
    assert Owned.started == {"model": "smollm2", "startup_timeout": 9.0}
    assert (runtime.url, runtime.pid, runtime.server_args.port) == ("ipc://mine", 7, 30000)
    assert json.loads(runtime.generate("A", {"max_new_tokens": 2}))["text"] == "after A"

    async def read() -> list[str]:
        return [text async for text in runtime.async_generate("A")]

    assert asyncio.run(read()) == ["after", " A", " and"]
    assert asyncio.run(runtime.get_server_info())["model_path"] == "mock"

    @sgl.function
    def program(s):
        s += "A" + sgl.gen("x")

    assert program.run(backend=runtime)["x"] == "after A and"
    sgl.set_default_backend(runtime)
    assert program.run()["x"] == "after A and"
    runtime.cache_prefix("a long prefix")
    assert runtime.endpoint.runtime.prompts[-1] == "a long prefix"
    runtime.flush_cache()
    runtime.shutdown()
    assert runtime.endpoint.runtime.closed


def test_an_endpoint_passes_on_what_a_cache_is_told() -> None:
    class Told(bl.Mock):
        heard: list[Any] = []  # noqa: RUF012 - one for the test

        def ended(self, program: str, branch: tuple[int, ...] = ()) -> None:
            self.heard.append((program, branch))

    @sgl.function
    def program(s):
        s += "A" + sgl.gen("x")

    program.run(backend=Told("a")).sync()
    endpoint = Endpoint(Told("a"))
    endpoint.ended("p", (0, 1))
    assert Told.heard[-1] == ("p", (0, 1))
    assert not hasattr(Endpoint(bl.Mock()), "ended")


@sgl.function
def converse(s, question):
    s += sgl.system("Be brief.")
    s += sgl.user(question) + sgl.assistant(sgl.gen("answer", max_tokens=8, stop="."))


def test_openai_chat() -> None:
    with serving(lambda prompt: f"to {len(prompt)}. And") as fake:
        backend = sgl.OpenAI("gpt-4o-mini", base_url=fake.url, api_key="k", max_retries=0)
        state = converse.run("<|im_end|> Hi", backend=backend)
        assert state["answer"].startswith("to ")
        state.sync()
        assert fake.bodies[0]["messages"] == [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "<|im_end|> Hi"},
        ]
        assert backend.is_chat_model
        usage = backend.token_usage
        assert (usage.prompt_tokens > 0, usage.completion_tokens > 0) == (True, True)
        usage.reset()
        assert (usage.prompt_tokens, usage.completion_tokens) == (0, 0)


def test_openai_completions() -> None:
    with serving(lambda prompt: prompt[-1] + "!") as fake:

        @sgl.function
        def program(s):
            s += "A" + sgl.gen("x", max_tokens=8) + sgl.user("B") + sgl.gen("y", max_tokens=8)

        backend = sgl.OpenAI("gpt-3.5-turbo-instruct", base_url=fake.url, chat_template="chatml")
        state = program.run(backend=backend)
        assert (state["x"], backend.is_chat_model) == ("A!", False)
        state.sync()
        assert fake.bodies[1]["prompt"] == "AA!<|im_start|>user\nB<|im_end|>\n"


@pytest.mark.parametrize("stream", [False, True])
def test_openai_completions_between_quotes(stream: bool) -> None:
    with serving('Lisbon", and so on') as fake:

        @sgl.function
        def program(s):
            s += '{"name": ' + sgl.gen_string("name", max_tokens=16) + "}" + sgl.gen("x", 1)

        backend = sgl.OpenAI("text", is_chat_model=False, base_url=fake.url)
        state = program.run(backend=backend, stream=stream)
        assert state["name"] == '"Lisbon"'
        assert "".join(state.text_iter("name")) == '"Lisbon"'
        assert state.text() == '{"name": "Lisbon"}L'
        prompts = [body["prompt"] for body in fake.bodies]
        assert prompts == ['{"name": "', '{"name": "Lisbon"}']


def test_what_nobody_enforces_is_checked() -> None:
    """Whoever serves the model is not asked for what the API lacks; a wrong text is an error."""
    with serving(lambda prompt: "12" if prompt.endswith("A") else "twelve") as fake:

        @sgl.function
        def program(s, word):
            s += word + sgl.gen("x", 16, regex="[0-9]+")

        backend = sgl.OpenAI("text", is_chat_model=False, base_url=fake.url)
        assert program.run("A", backend=backend)["x"] == "12"
        with pytest.raises(bl.ProgramError, match="'twelve', which does not match") as caught:
            program.run("B", backend=backend)["x"]
        assert isinstance(caught.value.__cause__, NotAsPromised)
        assert fake.bodies[0].keys().isdisjoint({"regex", "response_format"})


def test_openai_settings() -> None:
    with pytest.raises(bl.InvalidRequest, match="base_url"):
        sgl.OpenAI("gpt-4o", is_azure=True)
    with pytest.raises(bl.InvalidRequest, match="organization"):
        sgl.OpenAI("gpt-4o", organization="x")


def test_requests_are_parsed_like_programs() -> None:
    backend = bl.Mock("a")
    requests.answer(Endpoint(backend), "<|im_start|>", None, {})
    assert backend.requests[0].prompt == (("template", "<|im_start|>"),)
