# ruff: noqa: PLW2901 - a loop over branches appends to them with +=

"""Programs with the features of SGLang's `examples/frontend_language`, each small and our own."""

from __future__ import annotations

import asyncio
import json
from math import exp
from typing import TYPE_CHECKING

import pytest
from pydantic import BaseModel

import branchline as bl
import branchline.sglang as sgl
from branchline.protocol import ChatTemplate
from branchline.sglang.schemas import build_regex_from_object

if TYPE_CHECKING:
    from collections.abc import Callable

    Make = Callable[..., bl.Mock]

TALK = {"Who wrote": "Homer wrote it.", "And the other": "He did, too.", "capital": " Athens\n"}


@sgl.function
def converse(s, first, second):
    s += sgl.system("You are a classicist.")
    s += sgl.user(first)
    s += sgl.assistant(sgl.gen("first", max_tokens=256))
    s += sgl.user(second)
    s += sgl.assistant(sgl.gen("second", max_tokens=256))


@sgl.function
def complete(s, question):
    s += "Q: What is the capital of Italy?\nA: Rome\n"
    s += "Q: " + question + "\nA:" + sgl.gen("answer", stop="\n", temperature=0)


# ------------------------------------------------------------------------------- quick start


def test_chat_single_stream_and_batch(mock: Make) -> None:
    mock(TALK)
    questions = {"first": "Who wrote the Iliad?", "second": "And the other one?"}
    state = converse.run(**questions)
    assert [message["content"] for message in state.messages()] == [
        "You are a classicist.",
        questions["first"],
        "Homer wrote it.",
        questions["second"],
        "He did, too.",
    ]
    streamed = converse.run(**questions, stream=True)
    pieces = list(streamed.text_iter())
    assert "".join(pieces) == state.text()
    assert len(pieces) > 6
    batch = converse.run_batch([questions, questions], progress_bar=False)
    assert [one.messages() for one in batch] == [state.messages()] * 2


def test_completion_single_stream_and_batch(mock: Make) -> None:
    mock(TALK)
    question = "What is the capital of Greece?"
    assert complete.run(question=question)["answer"] == " Athens"
    assert "".join(complete.run(question=question, stream=True).text_iter("answer")) == " Athens"
    states = complete.run_batch([{"question": question}] * 3)
    assert [state["answer"] for state in states] == [" Athens"] * 3


def test_several_choices(mock: Make) -> None:
    @sgl.function
    def name(s):
        s += sgl.user("A name for a cat?")
        s += sgl.assistant(sgl.gen("names", n=2))
        s += sgl.user("And for a dog?") + sgl.assistant(sgl.gen("dog"))

    backend = mock(["Tom", "Kit", "Rex"])
    state = name.run()
    assert state["names"] == ["Tom", "Kit"]
    state.sync()
    assert "ASSISTANT:Tom\n" in backend.prompts[1]
    assert "Kit" not in backend.prompts[1]


# ------------------------------------------------------------------------------------- usage


def test_a_choice_that_branches(mock: Make) -> None:
    @sgl.function
    def work(s, question):
        s += "To answer " + question + " I need a "
        s += sgl.gen("tool", choices=["calculator", "browser"]) + ". "
        if s["tool"] == "calculator":
            s += "The term is" + sgl.gen("term", regex=r" \d+ \* \d+")
        else:
            s += "The word is" + sgl.gen("word")

    mock({"term": " 6 * 7", "word": " lemma"}, select={"6": "calculator", "lemma": "browser"})
    assert work.run("6 times 7?")["term"] == " 6 * 7"
    assert work.run("what lemma means,")["word"] == " lemma"


def test_a_tip_for_each_branch(mock: Make) -> None:
    @sgl.function
    def tips(s):
        s += sgl.assistant("Two tips: 1. Eat well. 2. Sleep well.")
        forks = s.fork(2)
        for at, fork in enumerate(forks):
            fork += sgl.assistant(f"Now tip {at + 1}:" + sgl.gen("detail", max_tokens=64))
        s += sgl.assistant("1:" + forks[0]["detail"] + " 2:" + forks[1]["detail"])
        s += sgl.assistant("In short:" + sgl.gen("summary"))

    mock({"tip 1": " fruit", "tip 2": " a dark room", "short": " live well"})
    state = tips.run()
    assert "1: fruit 2: a dark room" in state.text()
    assert state["summary"] == " live well"


def test_streaming_a_later_variable(mock: Make) -> None:
    backend = mock(TALK, hold=True)
    state = converse.run("Who wrote the Iliad?", "And the other one?", stream=True)
    backend.release()
    assert list(state.text_iter("second")) == ["He", " did", ",", " too", "."]

    async def read() -> list[tuple[str, dict]]:
        state = converse.run("Who wrote the Iliad?", "And the other?", stream=True)
        read = state.text_async_iter("second", return_meta_data=True)
        return [(text, meta) async for text, meta in read]

    pairs = asyncio.run(read())
    assert "".join(text for text, _ in pairs) == "He did, too."
    assert pairs[-1][1]["finish_reason"]["type"] == "stop"


def test_logprobs_of_choices(mock: Make) -> None:
    @sgl.function
    def weigh(s):
        s += "The capital of Greece is " + sgl.gen("city", choices=["Athens", "Sparta now"])

    mock("", likelihoods={"Athens": [-0.25], "Sparta now": [-1.0, -3.0]})
    meta = weigh.run().get_meta_info("city")
    assert meta["normalized_prompt_logprobs"] == [-0.25, -2.0]
    logprobs = [[triple[0] for triple in one] for one in meta["input_token_logprobs"]]
    assert logprobs == [[-0.25], [-1.0, -3.0]]


@pytest.mark.usefixtures("words")
@pytest.mark.parametrize("chat", [True, False])
def test_decoding_along_several_first_tokens(chat: bool, mock: Make) -> None:
    """Each likely first token opens a path; the path that the model is surest of is the best."""

    @sgl.function
    def decode(s, question, paths):
        if chat:
            s += sgl.user(question) + sgl.assistant_begin()
        else:
            s += question + "\nA:"
        first, *_ = s.fork(1)
        forks, spans = s.fork(paths), s.fork(paths)
        first += sgl.gen("top", max_tokens=0, return_logprob=True, top_logprobs_num=paths)
        tops = first.get_meta_info("top")["output_top_logprobs"][0]
        deltas = []
        for fork, span, (_, _, text) in zip(forks, spans, tops, strict=True):
            fork += text + sgl.gen("answer", temperature=0, return_logprob=True, top_logprobs_num=2)
            top = fork.get_meta_info("answer")["output_top_logprobs"]
            deltas.append(sum(exp(a[0]) - exp(b[0]) for a, b in top) / len(top))
            before = str(span)[:-1]  # `ProgramState(` … `)`
            span += text + fork["answer"] + "\nSo it is" + sgl.gen("span", max_tokens=2)
            assert str(span).startswith(before)
        return deltas, [span["span"] for span in spans], [text for _, _, text in tops]

    backend = mock("five apples", likelihoods=None)
    state = decode.run("How many apples?", 3)
    deltas, spans, texts = state.ret_value
    assert len(set(texts)) == 3
    assert deltas == [pytest.approx(exp(-0.5) - exp(-1.5))] * 3
    assert spans == ["five apples"] * 3
    assert backend.requests[0].params.max_tokens == 0
    assert len(backend.requests) == 1 + 3 + 3


def test_parallel_samples(mock: Make) -> None:
    with pytest.warns(UserWarning, match="named n"):

        @sgl.function
        def sample(s, question, n):
            s += "Q: " + question + "\nThoughts:"
            forks = s.fork(n)
            forks += sgl.gen("thought", stop="Q:", temperature=0.8)
            forks += sgl.select("verdict", ["yes", "no"])
            forks.join()

    mock([" a", " b", " c"], select=["no", "yes", "no"])
    state = sample.run(question="Is it?", n=3)
    assert sorted(state["thought"]) == [" a", " b", " c"]
    assert sorted(state["verdict"]) == ["no", "no", "yes"]


def test_speculation_in_a_chat(mock: Make) -> None:
    @sgl.function(num_api_spec_tokens=256)
    def character(s):
        s += sgl.system("You invent people.")
        s += sgl.user("One, please.")
        fields = "Name:" + sgl.gen("name", stop="\n") + "\nBorn:" + sgl.gen("born", stop="\n")
        s += sgl.assistant(fields + "\n")

    mock({"Name:": " Ann\nBorn: 1\n", "Born:": " 1815\n"})
    for state in (character.run(), *character.run_batch([{}] * 2), character.run(stream=True)):
        assert (state["name"], state["born"]) == (" Ann", " 1815")


def test_stages_of_forks_over_one_context(mock: Make) -> None:
    @sgl.function
    def review(s, document, views):
        s += sgl.user("Document: " + document)
        forks = s.fork(len(views))
        for fork, view in zip(forks, views, strict=True):
            fork += sgl.user("As " + view) + sgl.assistant(sgl.gen("view", max_tokens=64))
        forks.join()
        s += sgl.user("Together: " + " / ".join(s["view"])) + sgl.assistant(sgl.gen("all"))

    backend = mock({"As a lawyer": "Sue.", "As a doctor": "Rest.", "Together": "Sue, then rest."})
    state = review.run("…", ["a lawyer", "a doctor"])
    assert state["all"] == "Sue, then rest."
    assert "Together: Sue. / Rest." in backend.prompts[-1]
    assert len(backend.requests) == 3


class Spell(BaseModel):
    name: str
    strength: int
    known: bool


def test_json_by_a_regex_and_by_a_model(mock: Make) -> None:
    @sgl.function
    def describe(s, regex):
        s += "A spell as JSON: " + sgl.gen("json", max_tokens=64, regex=regex)

    written = '{"name": "Lux", "strength": 3, "known": true}'
    mock([written, '{"name": "Lux"}'])
    regex = build_regex_from_object(Spell)
    assert Spell.model_validate_json(describe.run(regex)["json"]) == Spell(
        name="Lux", strength=3, known=True
    )
    with pytest.raises(bl.ProgramError, match="does not match"):
        describe.run(regex)["json"]


def test_logprobs_of_json(mock: Make) -> None:
    @sgl.function
    def describe(s):
        s += "As JSON: " + sgl.gen(
            "json", json_schema=json.dumps(Spell.model_json_schema()), return_logprob=True
        )

    mock('{"name": "Lux", "strength": 3, "known": false}')
    state = describe.run(top_logprobs_num=2)
    meta = state.get_meta_info("json")
    assert json.loads(state["json"])["known"] is False
    assert len(meta["output_token_logprobs"]) == meta["completion_tokens"]
    assert {len(top) for top in meta["output_top_logprobs"]} == {2}


def test_a_regex_in_chinese(mock: Make) -> None:
    @sgl.function
    def address(s):
        s += "地址：" + sgl.gen("where", regex=r"[\u4e00-\u9fff]+市[\u4e00-\u9fff]+路\d+号")

    mock(["上海市南京路12号", "Shanghai"])
    assert address.run()["where"] == "上海市南京路12号"
    with pytest.raises(bl.ProgramError):
        address.run()["where"]


def test_min_tokens(mock: Make) -> None:
    backend = mock("Paris is it")
    state = complete.run("the capital?", max_new_tokens=64)
    assert state["answer"]

    @sgl.function
    def long(s):
        s += sgl.user("Go on.") + sgl.assistant(sgl.gen("x", min_tokens=12, max_tokens=20))

    long.run().sync()
    params = backend.requests[-1].params
    assert (params.min_tokens, params.max_tokens) == (12, 20)


def test_a_named_template_in_place_of_the_models(mock: Make) -> None:
    own = ChatTemplate(prefix={"user": "<u>"}, suffix={"user": "</u>"})
    backend = bl.Mock("hi", template=own)
    bl.set_default_backend(backend)

    @sgl.function
    def talk(s):
        s += sgl.user("Hello") + sgl.assistant(sgl.gen("x"))

    named = sgl.RuntimeEndpoint("http://127.0.0.1:30000", chat_template_name="qwen")
    talk.run(backend=named).sync()
    assert backend.prompts[0] == (
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
        "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    )
    assert backend.requests[0].params.stop == ("<|im_end|>",)
