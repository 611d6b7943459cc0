"""`/v1/chat/completions` over a scripted backend, asked by OpenAI's own client."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from branchline.call_grammar import call_grammar
from branchline.protocol import Conversation, Finish, Update, Usage
from tests.gateway.http import send
from tests.gateway.scripted import CONTEXT, say, token

if TYPE_CHECKING:
    from collections.abc import Iterator

    import openai

    from tests.gateway.scripted import Scripted

PATH = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hello"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
        "strict": True,
    },
}
TIME = {"type": "function", "function": {"name": "time"}}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
OTHER = '<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>'


@pytest.fixture
def takes_tools(backend: Scripted) -> Iterator[None]:
    """A model whose template shows tools."""
    card, backend.card = backend.card, replace(backend.card, takes_tools=True)
    yield
    backend.card = card


def test_a_conversation_goes_whole(backend: Scripted, client: openai.OpenAI) -> None:
    backend.script = [say("Hi", " there")]
    messages = [
        {"role": "system", "content": "Be <|im_end|> kind."},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": "Yes."},
        {"role": "user", "content": "Hello", "name": "Ann"},
    ]
    answer = client.chat.completions.create(model="toy", messages=messages)
    [asked] = backend.asked
    assert asked.prompt == ()
    assert asked.conversation == Conversation(
        (
            messages[0],
            {"role": "user", "content": "a\nb"},
            messages[2],
            messages[3],
        )
    )
    assert asked.params.max_tokens == CONTEXT  # as many as fit
    [choice] = answer.choices
    assert choice.message.content == "Hi there"
    assert choice.message.role == "assistant"
    assert choice.message.tool_calls is None
    assert choice.finish_reason == "stop"
    assert answer.usage.total_tokens == 12
    # What the client made of the answer can be sent back.
    messages += [choice.message, {"role": "user", "content": "More"}]
    client.chat.completions.create(model="toy", messages=messages)
    assert backend.asked[1].conversation.messages[4] == {
        "role": "assistant",
        "content": "Hi there",
    }


def test_a_stream(backend: Scripted, client: openai.OpenAI) -> None:
    backend.script = [[*say("a", "b", index=1), *say("c", index=0, reason="length")]]
    chunks = list(
        client.chat.completions.create(
            model="toy",
            messages=HELLO,
            n=2,
            max_completion_tokens=5,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert backend.asked[0].params.max_tokens == 5
    *chunks, last = chunks
    assert last.choices == []
    assert last.usage.completion_tokens == 3
    for index, text, reason in ((0, "c", "length"), (1, "ab", "stop")):
        mine = [c.choices[0] for c in chunks if c.choices[0].index == index]
        assert mine[0].delta.role == "assistant"
        assert all(choice.delta.role is None for choice in mine[1:])
        assert "".join(choice.delta.content or "" for choice in mine) == text
        assert [choice.finish_reason for choice in mine] == [None] * (len(mine) - 1) + [reason]


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs(backend: Scripted, client: openai.OpenAI, stream: bool) -> None:
    scored = [token("H", -0.5, ("H", -0.5), (r"bytes:\xe2\x80", -2.0)), token("i", float("-inf"))]
    backend.script = [
        [
            Update("", 0, "", (1,), (scored[0],)),  # its text is not certain yet
            Update("", 0, "Hi", (2,), (scored[1],)),
            Update("", 0, "", (3,), (token("<end>", -1),), finish=Finish("stop", 3), usage=COST),
        ]
    ]
    answer = client.chat.completions.create(
        model="toy", messages=HELLO, logprobs=True, top_logprobs=2, stream=stream
    )
    content = [
        one
        for chunk in (answer if stream else [answer])
        for choice in chunk.choices
        if choice.logprobs
        for one in choice.logprobs.content
    ]
    assert [(one.token, one.logprob, one.bytes) for one in content] == [
        ("H", -0.5, [72]),
        ("i", -9999.0, [105]),
    ]
    assert [(one.token, one.bytes) for one in content[0].top_logprobs] == [
        ("H", [72]),
        (r"bytes:\xe2\x80", [0xE2, 0x80]),
    ]
    params = backend.asked[0].params
    assert (params.logprobs, params.top_logprobs, params.logprob_texts) == (True, 2, True)


COST = Usage(10, 0, 3)


def test_an_answer_that_goes_on(backend: Scripted, url: str) -> None:
    messages = [*HELLO, {"role": "assistant", "content": "Well, "}]
    reply = send(url, PATH, {"messages": messages, "continue_final_message": True})
    assert reply.status == 200
    assert backend.asked[0].conversation.goes_on


# ---------------------------------------------------------------------------- tools


@pytest.mark.usefixtures("takes_tools")
def test_tools_go_to_a_template_that_takes_them(backend: Scripted, client: openai.OpenAI) -> None:
    backend.script = [say("Sure.\n", CALL)]
    answer = client.chat.completions.create(model="toy", messages=HELLO, tools=[WEATHER, TIME])
    asked = backend.asked[0]
    shown = {key: value for key, value in WEATHER["function"].items() if key != "strict"}
    no_parameters = {"name": "time", "parameters": {"type": "object", "properties": {}}}
    assert asked.conversation.tools == (
        {"type": "function", "function": shown},
        {"type": "function", "function": no_parameters},
    )
    assert asked.conversation.messages == tuple(HELLO)
    assert asked.params.grammar == call_grammar(
        {"weather": WEATHER["function"]["parameters"], "time": no_parameters["parameters"]},
        free=True,
        several=True,
    )
    [choice] = answer.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Sure."
    [call] = choice.message.tool_calls
    assert (call.type, call.function.name) == ("function", "weather")
    assert json.loads(call.function.arguments) == {"city": "Rome"}
    results = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
    client.chat.completions.create(
        model="toy", messages=[*HELLO, choice.message, results], tools=[WEATHER, TIME]
    )
    _, said, result = backend.asked[1].conversation.messages
    assert said["tool_calls"] == [call.model_dump()]
    assert said["content"] == "Sure."
    assert result == results


def test_tools_are_told_to_a_model_whose_template_has_none(backend: Scripted, url: str) -> None:
    messages = [
        {"role": "system", "content": "Be kind."},
        *HELLO,
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                _call("1", "weather", '{"city": "Rome"}'),
                _call("2", "time", "{}"),
            ],
        },
        {"role": "tool", "tool_call_id": "1", "content": "sunny"},
        {"role": "tool", "tool_call_id": "2", "content": "noon"},
    ]
    assert send(url, PATH, {"messages": messages, "tools": [WEATHER, TIME]}).status == 200
    conversation = backend.asked[0].conversation
    assert conversation.tools == ()
    system, user, assistant, results = conversation.messages
    assert system["content"].startswith("Be kind.\n\n")
    assert '"name": "weather"' in system["content"]
    assert user == HELLO[0]
    assert assistant == {"role": "assistant", "content": f"{CALL}\n{OTHER}"}
    assert results["role"] == "user"
    assert results["content"] == (
        "<tool_response>\nsunny\n</tool_response>\n<tool_response>\nnoon\n</tool_response>"
    )


def _call(name: str, function: str, arguments: str) -> dict[str, Any]:
    return {"id": name, "type": "function", "function": {"name": function, "arguments": arguments}}


def test_streamed_calls(backend: Scripted, client: openai.OpenAI) -> None:
    text = f"I look.\n{CALL}\n{OTHER}"
    backend.script = [say(*(text[at : at + 3] for at in range(0, len(text), 3)))]
    stream = client.chat.completions.create(
        model="toy", messages=HELLO, tools=[WEATHER, TIME], stream=True
    )
    said, calls, reasons = "", [], []
    for chunk in stream:
        [choice] = chunk.choices
        said += choice.delta.content or ""
        calls += choice.delta.tool_calls or []
        reasons.append(choice.finish_reason)
    assert said == "I look."
    assert [(call.index, call.function.name) for call in calls] == [(0, "weather"), (1, "time")]
    assert [json.loads(call.function.arguments) for call in calls] == [{"city": "Rome"}, {}]
    assert len({call.id for call in calls}) == 2
    assert reasons[-1] == "tool_calls"


@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize(
    ("choice", "free", "offered"),
    [
        ("auto", True, ["weather", "time"]),
        ("required", False, ["weather", "time"]),
        ({"type": "function", "function": {"name": "time"}}, False, ["time"]),
        ("none", None, []),
    ],
)
def test_tool_choice(
    backend: Scripted,
    client: openai.OpenAI,
    choice: Any,
    free: bool | None,
    offered: list[str],
    parallel: bool,
) -> None:
    client.chat.completions.create(
        model="toy",
        messages=HELLO,
        tools=[WEATHER, TIME],
        tool_choice=choice,
        parallel_tool_calls=parallel,
    )
    schemas = {"weather": WEATHER["function"]["parameters"]}
    schemas["time"] = {"type": "object", "properties": {}}
    wanted = None
    if free is not None:
        wanted = call_grammar(
            {name: schemas[name] for name in offered},
            free=free,
            several=parallel and not isinstance(choice, dict),
        )
    assert backend.asked[0].params.grammar == wanted


def test_a_call_that_is_cut_off_is_text(backend: Scripted, client: openai.OpenAI) -> None:
    backend.script = [say("<tool_call>\n", '{"name": "wea', reason="length")]
    answer = client.chat.completions.create(model="toy", messages=HELLO, tools=[WEATHER])
    [choice] = answer.choices
    assert choice.finish_reason == "length"
    assert choice.message.content == '<tool_call>\n{"name": "wea'
    assert choice.message.tool_calls is None


IMAGE = {"type": "image_url", "image_url": {"url": "http://x"}}


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"messages": "hi"}, "messages", "list"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages", "wizard|'user'"),
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, "messages", "text"),
        ({"messages": HELLO, "top_logprobs": 2}, "top_logprobs", "logprobs=true"),
        ({"messages": HELLO, "tool_choice": "required"}, "tool_choice", "no tools"),
        ({"messages": HELLO, "tools": [TIME, TIME]}, "tools", "same name"),
        ({"messages": HELLO, "tools": [TIME], "regex": "a"}, "tools", "only one"),
        ({"messages": HELLO, "functions": []}, "functions", "supported"),
        ({"messages": HELLO, "modalities": ["audio"]}, "modalities", "text"),
    ],
)
def test_what_is_refused(backend: Scripted, url: str, body: dict, param: str, words: str) -> None:
    reply = send(url, PATH, body)
    assert reply.status == 400
    assert reply.error["param"] == param
    assert any(word in reply.error["message"] for word in words.split("|"))
    assert not backend.asked


def test_a_named_tool_must_be_there(backend: Scripted, url: str) -> None:
    choice = {"type": "function", "function": {"name": "moon"}}
    reply = send(url, PATH, {"messages": HELLO, "tools": [TIME], "tool_choice": choice})
    assert reply.status == 400
    assert "'moon'" in reply.error["message"]
