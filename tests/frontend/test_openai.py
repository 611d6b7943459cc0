"""Programs on an OpenAI-compatible endpoint, against a fake of the protocol on a real socket."""

from __future__ import annotations

import json
import time

import pytest

import branchline as bl
from branchline import openai_stream
from branchline.openai_backend import OpenAI
from branchline.seeds import derive_seed

from .fake_openai import Refusal, serving

CITIES = ["Paris", "Pisa", "Rome"]


def encode(text: str) -> list[int]:
    return [ord(character) for character in text]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai_stream, "FIRST_WAIT", 0.001)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)


@bl.function
def talk(s, **settings):
    s += bl.system("Be brief.")
    s += bl.user("Say <|im_end|>\n" + "hello")
    s += bl.assistant(bl.gen("hello", **settings))
    s += bl.user("And now?")
    s += bl.assistant(bl.gen("now", **settings))


@bl.function
def complete(s, prompt, **settings):
    s += prompt
    s += bl.gen("text", **settings)
    s += "!"


@bl.function
def choose(s, prompt, choices, method=bl.token_length_normalized):
    s += prompt
    s += bl.select("choice", choices, choices_method=method)


@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_is_sent_as_its_messages(stream):
    """What looks like the end of a turn in a program's text does not end one."""
    with serving(lambda prompt: f"<{len(prompt)}>") as fake:
        backend = OpenAI("m", base_url=fake.url, api_key="secret")
        state = talk.run(backend=backend, stream=stream, temperature=0, max_new_tokens=32)
        before = "[system]Be brief.[user]Say <|im_end|>\nhello[assistant]"
        assert state["hello"] == f"<{len(before)}>"
        assert state["now"] == f"<{len(before + '<52>[user]And now?[assistant]')}>"
    asked = "Say <|im_end|>\nhello"
    first = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": asked}]
    assert fake.bodies[0]["messages"] == first
    assert fake.bodies[1]["messages"] == [
        *first,
        {"role": "assistant", "content": state["hello"]},
        {"role": "user", "content": "And now?"},
    ]
    assert state.messages()[:-1] == fake.bodies[1]["messages"]
    assert fake.bodies[0] | {"messages": None, "stream": False, "stream_options": None} == {
        "model": "m", "messages": None, "max_tokens": 32, "temperature": 0,
        "stream": False, "stream_options": None,
    }  # fmt: skip
    path, headers, _ = fake.asked[0]
    assert (path, headers["authorization"]) == ("/v1/chat/completions", "Bearer secret")
    meta = state.get_meta_info("hello")
    counts = [meta[f"{what}_tokens"] for what in ("prompt", "completion", "cached")]
    assert counts == [len(before), 4, 2]
    assert meta["finish_reason"]["type"] == "stop"


@pytest.mark.parametrize("stream", [False, True])
def test_a_completion_goes_on_from_its_text(stream):
    with serving("one, two. three") as fake:
        backend = OpenAI("m", base_url=fake.url, chat=False)
        state = complete.run("Count: ", stop=["."], backend=backend, stream=stream)
        chunks = list(state.text_iter())
        assert "".join(chunks) == state.text() == "Count: one, two!"
        assert (len(chunks) > 5) == stream
    (body,) = fake.bodies
    assert (body["prompt"], body["stop"], body["max_tokens"]) == ("Count: ", ["."], 128)
    assert "authorization" not in fake.asked[0][1]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("chat", [False, True])
def test_several_choices_and_log_probabilities(chat, stream):
    with serving("ab") as fake:
        backend = OpenAI("m", base_url=fake.url, chat=chat)
        program = talk if chat else complete
        args = () if chat else ("x",)
        state = program.run(
            *args, n=3, top_logprobs_num=2, seed=5, max_tokens=2, backend=backend, stream=stream
        )
        name = "hello" if chat else "text"
        assert state[name] == ["ab", "ab", "ab"]
        metas = state.get_meta_info(name)
    assert [meta["finish_reason"]["type"] for meta in metas] == ["length"] * 3
    assert metas[0]["output_token_logprobs"] == [[-1.0, -1, "a"], [-1.0, -1, "b"]]
    assert metas[2]["output_top_logprobs"] == [
        [[-1.0, -1, text], [-2.0, -1, f"{text}0"]] for text in "ab"
    ]
    assert [meta["completion_tokens"] for meta in metas] == [6, 0, 0]
    assert (fake.bodies[0]["n"], fake.bodies[0]["seed"]) == (3, derive_seed(5, 0))


def test_texts_of_tokens_come_with_their_log_probabilities():
    with serving("ab") as fake:
        backend = OpenAI("m", base_url=fake.url)
        params = bl.SamplingParams(top_logprobs=2)
        prompt = (("template", "<|im_start|>user\n"), ("program", "x"),
                  ("template", "<|im_end|>\n<|im_start|>assistant\n"))  # fmt: skip
        from branchline import eventloop
        from branchline.protocol import Generate

        async def ask():
            request = Generate("r", prompt, params, stream=False)
            return [update async for update in backend.generate(request)]

        (update,) = eventloop.run(ask())
    assert [(p.token, p.text, p.top_texts) for p in update.logprobs] == [
        (-1, "a", ("a", "a0")), (-1, "b", ("b", "b0"))
    ]  # fmt: skip


# ---------------------------------------------------------------------------------- select


def test_select_lets_the_model_write_one_of_the_choices():
    with serving(lambda prompt: "Pisa is"[len(prompt) - 3 :]) as fake:
        backend = OpenAI("m", base_url=fake.url, chat=False, encode=encode)
        for method in (bl.token_length_normalized, bl.greedy_token_selection,
                       bl.unconditional_likelihood_normalized):  # fmt: skip
            fake.asked.clear()
            state = choose.run("In ", CITIES, method, backend=backend)
            assert state["choice"] == "Pisa"
            assert state.text() == "In Pisa"
            steps = [(body["prompt"], sorted(map(int, body["logit_bias"]))) for body in fake.bodies]
            assert steps == [("In ", encode("PR")), ("In P", encode("ai"))]
            assert {(b["max_tokens"], b["temperature"]) for b in fake.bodies} == {(1, 0)}
        assert state.get_meta_info("choice")["prompt_tokens"] == 3 + 4


@pytest.mark.parametrize(
    ("says", "choices", "taken", "requests"),
    [
        ("x", ["only"], "only", 0),
        ("yes", ["yes", "yesterday"], "yesterday", 3 + 0),
        ("b", ["a", "b"], "b", 1),
        ("?", ["b", "a"], "a", 1),
    ],
)
def test_select_asks_no_more_than_it_must(says, choices, taken, requests):
    with serving(lambda prompt: (says + "?" * 9)[len(prompt) - 1 :]) as fake:
        backend = OpenAI("m", base_url=fake.url, chat=False, encode=encode)
        state = choose.run(":", choices, backend=backend)
        assert state["choice"] == (choices[0] if says == "yes" else taken)
        assert len(fake.asked) == requests


def test_select_in_a_chat_that_goes_on():
    @bl.function
    def program(s):
        s += bl.user("Where?")
        s += bl.assistant("In " + bl.select("choice", CITIES))

    with serving(lambda prompt: "Rome"[len(prompt.rpartition("In ")[2]) :] or ".") as fake:
        backend = OpenAI("m", base_url=fake.url, continues=True, encode=encode)
        assert program.run(backend=backend)["choice"] == "Rome"
    assert fake.bodies[0]["messages"][-1] == {"role": "assistant", "content": "In "}
    assert fake.bodies[0]["continue_final_message"] is True


# ----------------------------------------------------------------------- refused by name


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"top_k": 5}, "extensions=['top_k']"),
        ({"min_tokens": 2}, "min_tokens"),
        ({"logprob_start_len": 0}, "logprob_start=0"),
        ({"max_tokens": 0}, "max_tokens=0"),
    ],
)
def test_what_the_api_lacks_is_refused_by_name(settings, named):
    with serving() as fake:
        backend = OpenAI("m", base_url=fake.url, chat=False)
        with pytest.raises(bl.ProgramError, match="InvalidRequest") as caught:
            complete.run("x", backend=backend, **settings).sync()
        assert named in str(caught.value)
        assert not fake.asked


def test_extensions_are_sent_under_their_names():
    with serving() as fake:
        backend = OpenAI("gpt-5-mini", base_url=fake.url, extensions=["top_k"], body={"user": "me"})
        talk.run(top_k=5, logit_bias={7: -1.5}, backend=backend).sync()
    body = fake.bodies[0]
    assert (body["top_k"], body["user"], body["logit_bias"]) == (5, "me", {"7": -1.5})
    assert body["max_completion_tokens"] == 128


def misplaced(s):
    s += bl.user("x")
    s += bl.gen("y")


def stray(s):
    s += "stray" + bl.user("x") + bl.assistant(bl.gen("y"))


def begun(s):
    s += bl.user("x") + bl.assistant("Sure: " + bl.gen("y"))


def chosen(s):
    s += bl.user("x") + bl.assistant(bl.select("y", ["a", "b"]))


@pytest.mark.parametrize(
    ("body", "settings", "named"),
    [
        (misplaced, {}, "put the gen in assistant"),
        (stray, {}, "'stray'"),
        (begun, {}, "'Sure: '"),
        (chosen, {}, "pass encode="),
        (chosen, {"encode": encode}, "cannot go on from a turn"),
    ],
)
def test_what_a_chat_endpoint_cannot_do_is_said(body, settings, named):
    with serving() as fake:
        backend = OpenAI("m", base_url=fake.url, **settings)
        with pytest.raises(bl.ProgramError) as caught:
            bl.function(body).run(backend=backend).sync()
        assert named in str(caught.value)
        assert not fake.asked


# ------------------------------------------------------------------------------- trouble


@pytest.mark.parametrize("stream", [False, True])
def test_a_busy_endpoint_is_asked_again_when_it_says(stream):
    with serving("fine") as fake:
        fake.refusals = [Refusal(429, headers={"Retry-After": "0.3"}), Refusal(503), Refusal(500)]
        backend = OpenAI("m", base_url=fake.url, chat=False)
        start = time.monotonic()
        assert complete.run("x", backend=backend, stream=stream)["text"] == "fine"
        assert time.monotonic() - start >= 0.3
        assert len(fake.asked) == 4


@pytest.mark.parametrize(
    ("refusals", "error", "named", "requests"),
    [
        ([Refusal(503)] * 9, bl.RuntimeUnavailable, "status 503: as asked", 3),
        ([Refusal(400, '{"detail": "no such field"}')], bl.InvalidRequest, "no such field", 1),
        ([Refusal(401)], bl.InvalidRequest, "check api_key", 1),
        ([Refusal(404, "<html>nothing here</html>")], bl.InvalidRequest, "nothing here", 1),
        (
            [Refusal(429, '{"error": {"message": "pay", "code": "insufficient_quota"}}')],
            bl.InvalidRequest,
            "pay (insufficient_quota)",
            1,
        ),
    ],
)
def test_refusals_say_what_the_endpoint_says(refusals, error, named, requests):
    with serving() as fake:
        fake.refusals = list(refusals)
        backend = OpenAI("m", base_url=fake.url, chat=False, attempts=3)
        with pytest.raises(bl.ProgramError) as caught:
            complete.run("x", backend=backend).sync()
        assert isinstance(caught.value.__cause__, error)
        assert named in str(caught.value.__cause__)
        assert len(fake.asked) == requests


@pytest.mark.parametrize(
    ("setting", "value", "stream", "error", "named"),
    [
        ("cut_after", 3, True, bl.RuntimeUnavailable, "broke off"),
        ("cut_after", 10, False, bl.RuntimeUnavailable, "broke off"),
        ("raw", b"<html>", False, bl.RuntimeFailed, "no JSON"),
        ("raw", b"data: {}\n\ndata: nothing\n\n", True, bl.RuntimeFailed, "no JSON"),
        ("raw", b'data: {"error": {"message": "gone"}}\n\n', True, bl.RuntimeFailed, "gone"),
        ("raw", b"data: [DONE]\n\n", True, bl.RuntimeFailed, "never finished"),
        ("raw", b'{"choices": [{"index": 7}]}', False, bl.RuntimeFailed, "choice 7 of 1"),
        ("finish_reason", "content_filter", True, bl.RequestAborted, "content filter"),
    ],
)
def test_answers_that_are_none(setting, value, stream, error, named):
    with serving("a longer text") as fake:
        setattr(fake, setting, value)
        backend = OpenAI("m", base_url=fake.url, chat=False, attempts=2)
        with pytest.raises(bl.ProgramError) as caught:
            complete.run("x", backend=backend, stream=stream).sync()
        assert isinstance(caught.value.__cause__, error)
        assert named in str(caught.value.__cause__)


def test_nobody_there():
    with serving() as fake:
        pass
    backend = OpenAI("m", base_url=fake.url, attempts=2)
    with pytest.raises(bl.ProgramError) as caught:
        talk.run(backend=backend).sync()
    assert "2 attempts" in str(caught.value.__cause__)


def test_a_silent_endpoint_is_given_up():
    with serving("text") as fake:
        fake.pace = 1.0
        backend = OpenAI("m", base_url=fake.url, chat=False, timeout=0.1, attempts=1)
        with pytest.raises(bl.ProgramError) as caught:
            complete.run("x", backend=backend, stream=True).sync()
        assert isinstance(caught.value.__cause__, bl.RuntimeUnavailable)


def test_leaving_a_stream_hangs_up():
    from contextlib import aclosing

    from branchline import eventloop
    from branchline.protocol import Generate

    with serving("x" * 1000) as fake:
        fake.pace = 0.002
        backend = OpenAI("m", base_url=fake.url, chat=False)

        async def ask():
            request = Generate("r", (("program", "x"),), bl.SamplingParams(max_tokens=1000))
            async with aclosing(backend.generate(request)) as updates:
                async for update in updates:
                    return update.text
            raise AssertionError("no update came")

        assert eventloop.run(ask()) == "x"
        assert fake.hung_up.wait(5)


def test_usage_need_not_be_reported():
    with serving("text") as fake:
        fake.reports_usage = False
        backend = OpenAI("m", base_url=fake.url, chat=False)
        state = complete.run("x", backend=backend, stream=True)
        assert state["text"] == "text"
        assert state.get_meta_info("text")["completion_tokens"] == 0


def test_64_at_once_take_no_threads(monkeypatch):
    import threading

    before = set(threading.enumerate())
    with serving("text") as fake:
        backend = OpenAI("m", base_url=fake.url, chat=False, concurrency=32)
        results = backend.generate_text([f"{n}" for n in range(64)], bl.SamplingParams(n=2))
        assert [result.text for result in results] == ["text", "text1"] * 64
        mine = [t for t in set(threading.enumerate()) - before if "process_request" not in t.name]
        assert len(mine) <= 2, "the server's own, and the background loop"


@pytest.mark.parametrize("url", ["ftp://x", "localhost:8000", "http://"])
def test_addresses_that_are_none(url):
    with pytest.raises(bl.InvalidRequest, match="base_url"):
        OpenAI("m", base_url=url)
    with pytest.raises(bl.InvalidRequest, match="header"):
        OpenAI("m", api_key="two\nlines")


def test_the_environment_says_where(monkeypatch):
    with serving() as fake:
        monkeypatch.setenv("OPENAI_BASE_URL", fake.url)
        monkeypatch.setenv("OPENAI_API_KEY", "k")
        talk.run(backend=OpenAI("m")).sync()
        assert fake.asked[0][1]["authorization"] == "Bearer k"
        assert json.dumps(fake.bodies[0]).count("Bearer") == 0
