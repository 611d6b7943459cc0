# ruff: noqa: PLW2901 - a loop over branches appends to them with +=

"""Programs with the shape of each of SGLang's benchmarks that needs no image, small and our own."""

from __future__ import annotations

import argparse
import json
import re
import sys
from typing import TYPE_CHECKING

import pytest

import branchline as bl
import branchline.sglang as sgl
from branchline.sglang.ir import REGEX_INT, REGEX_STR
from branchline.sglang.schemas import build_regex_from_object
from branchline.sglang.test_utils import add_common_sglang_args_and_parse, select_sglang_backend

if TYPE_CHECKING:
    from collections.abc import Callable

    Make = Callable[..., bl.Mock]

SHOTS = "Question: 1 + 1?\nAnswer: It is 2.\n#### 2\n\nQuestion: 2 + 3?\nAnswer: 5.\n#### 5\n\n"


# ------------------------------------------------------------------- one gen after few shots


def test_gsm8k(mock: Make) -> None:
    @sgl.function
    def few_shot(s, question):
        s += SHOTS + "Question: " + question + "\nAnswer:"
        s += sgl.gen("answer", max_tokens=512, stop=["Question", "Assistant:", "<|separator|>"])

    backend = mock({r"4 \+ 4": " Eight.\n#### 8\n\nQuestion: and", r"1 \+ 7": " 8, too.\n#### 8"})
    states = few_shot.run_batch(
        [{"question": "4 + 4?"}, {"question": "1 + 7?"}], temperature=0, num_threads=2
    )
    answers = [re.findall(r"\d+", state["answer"])[-1] for state in states]
    assert answers == ["8", "8"]
    assert sum(state.get_meta_info("answer")["completion_tokens"] for state in states) > 10
    assert len(backend.requests) == 2, "one for each question, none to warm the cache"


@pytest.mark.parametrize("chat", [True, False])
def test_mmlu(chat: bool, mock: Make) -> None:
    @sgl.function
    def choose(s, examples, question):
        if chat:
            s += sgl.user(examples + question) + sgl.assistant(sgl.gen("answer"))
        else:
            s += examples + question + sgl.gen("answer")

    backend = mock({"first letter": " A ", "second letter": " B "})
    items = [{"examples": SHOTS, "question": f"The {at} letter?"} for at in ("first", "second")]
    states = choose.run_batch(items, max_new_tokens=1, temperature=0)
    assert [state["answer"].strip()[:1] for state in states] == ["A", "B"]
    assert {request.params.max_tokens for request in backend.requests} == {1}


def test_mtbench_and_reasoning(mock: Make) -> None:
    @sgl.function
    def answer(s, first, second):
        s += sgl.system()
        s += sgl.user(first) + sgl.assistant(sgl.gen("one"))
        s += sgl.user(second) + sgl.assistant(sgl.gen("two"))

    backend = mock({"poem": "A rose.", "line": "is red."})
    state = answer.run_batch(
        [{"first": "A poem?", "second": "Another line?"}],
        temperature=0.6,
        top_p=0.95,
        max_new_tokens=32768,
    )[0]
    assert state["two"] == "is red."
    assert state.messages()[0] == {"role": "system", "content": ""}
    params = backend.requests[0].params
    assert (params.max_tokens, params.temperature, params.top_p) == (32768, 0.6, 0.95)


def test_multi_turn_chat(mock: Make) -> None:
    @sgl.function
    def turns(s, questions):
        for question in questions:
            s += question["prompt"]
            s += sgl.gen(max_tokens=question["new_tokens"], ignore_eos=True)

    backend = mock("so it goes on and on")
    chat = [{"prompt": f"turn {at}", "new_tokens": 4} for at in range(4)]
    states = turns.run_batch([{"questions": chat}] * 2, temperature=0)
    assert states[0].text() == "".join(f"turn {at}so it goes on" for at in range(4))
    assert all(request.params.ignore_eos for request in backend.requests)


def test_generative_agents(mock: Make) -> None:
    @sgl.function
    def poignancy(s, name, event):
        s += f"{name} notes: {event}. On a scale of 1 to 10 it matters"
        s += sgl.gen(name="rating", max_tokens=2, stop="\n")

    mock(" 7 or so")
    states = [poignancy.run(name="Ann", event=event).sync() or event for event in ("rain", "fire")]
    assert states == ["rain", "fire"]


# ------------------------------------------------------------------------------ select, replay


def test_react_replayed(mock: Make) -> None:
    @sgl.function
    def replay(s, question, steps):
        s += "Question: " + question
        for at, step in enumerate(steps, 1):
            forks = s.fork(1)
            forks[0] += f"\nThought {at}:" + sgl.gen("thought", max_tokens=200, stop="Observation")
            forks.join()
            s += f"\nThought {at}:" + step["thought"] + "\nObservation: " + step["seen"]

    backend = mock(" whatever Observation")
    steps = [{"thought": " look", "seen": "a lake"}, {"thought": " count", "seen": "two"}]
    state = replay.run("How many?", steps)
    assert state["thought"] == [" whatever "]
    assert len(backend.requests) == 2
    assert state.text().endswith("Thought 2: count\nObservation: two")


# -------------------------------------------------------------------------------- tree of thought


def propose(s, question, width):
    s += sgl.user("Plan for: " + question)
    forks = s.fork(width)
    forks += sgl.assistant(sgl.gen("plan", max_tokens=256, temperature=0.3))
    return forks


def execute(s, width):
    s += sgl.user("Carry it out.")
    forks = s.fork(width)
    forks += sgl.assistant(sgl.gen("answer", max_tokens=256, temperature=0.3))
    return forks


def reflect(s, width):
    s += sgl.user("Is it right? 1 to 5.")
    forks = s.fork(width)
    forks += sgl.assistant(sgl.gen("score", temperature=0.3))
    return forks


def test_tree_of_thought(mock: Make) -> None:
    @sgl.function
    def tree(s, question, width):
        open_forks = []
        plans = propose(s, question, width)
        open_forks.append(plans)
        for plan in plans:
            answers = execute(plan, width)
            open_forks.append(answers)
            open_forks.extend(reflect(answer, width) for answer in answers)
        for forks in reversed(open_forks):
            forks.join()

    backend = mock({"Plan": "think", "Carry": "do", "right": "4"})
    state = tree.run("2 + 2", 3)
    assert state["plan"] == ["think"] * 3
    assert state["answer"] == [["do"] * 3] * 3
    assert state["score"] == [[["4"] * 3] * 3] * 3
    assert len(backend.requests) == 3 + 9 + 27


def test_deep_tree_of_thought(mock: Make) -> None:
    @sgl.function
    def tree(s, question, width):
        leaves = []
        for plan in propose(s, question, width):
            for answer in execute(plan, width):
                for score in reflect(answer, width):
                    score += sgl.user("The final answer?")
                    finals = score.fork(width)
                    finals += sgl.assistant(sgl.gen("final", max_tokens=16))
                    leaves.extend(finals)
        return leaves

    backend = mock({"Plan": "think", "Carry": "do", "right": "4", "final": "It is 4"})
    state = tree.run("2 + 2", 2)
    leaves = [leaf.text() for leaf in state.ret_value]
    assert len(leaves) == 16
    assert all(leaf.endswith("It is 4\n") for leaf in leaves)
    assert len(backend.requests) == 2 + 4 + 8 + 16


# ------------------------------------------------------------------------------ fork and join


def test_multi_chain_reasoning(mock: Make) -> None:
    @sgl.function
    def chains(s, question):
        s += "Question: " + question + "\n"
        forks = s.fork(3)
        for at, fork in enumerate(forks):
            fork += f"Way {at}:" + sgl.gen("chain", max_tokens=256, temperature=0.3, stop="\n")
        forks.join()
        for at, chain in enumerate(s["chain"]):
            s += f"Way {at}:{chain}\n"
        s += "All in all:" + sgl.gen("answer", max_tokens=16)

    mock({"Way 0:": " 4\n", "Way 1:": " 4\n", "Way 2:": " 5\n", "All in all:": " 4"})
    assert chains.run("2 + 2?").text() == (
        "Question: 2 + 2?\nWay 0: 4\nWay 1: 4\nWay 2: 5\nAll in all: 4"
    )


def test_llm_judge(mock: Make) -> None:
    aspects = ("clarity", "style", "truth")

    @sgl.function
    def judge(s, article):
        s += "Judge this article: " + article
        forks = s.fork(len(aspects))
        for fork, aspect in zip(forks, aspects, strict=True):
            fork += f"\nIts {aspect}:" + sgl.gen("judgment", max_tokens=256, stop="END")
        forks.join()
        s += "\n".join(s["judgment"])
        s += "\nGrade:" + sgl.gen("grade", max_tokens=2)

    mock(
        {"clarity:": " clear END", "style:": " dry END", "truth:": " so-so END", "Grade:": " B+ ."}
    )
    state = judge.run("…")
    assert [judgment.strip() for judgment in state["judgment"]] == ["clear", "dry", "so-so"]
    assert state["grade"] == " B+"


def test_tip_suggestion(mock: Make) -> None:
    @sgl.function
    def expand(s, tip):
        s += "A paragraph on " + tip + ":" + sgl.gen("paragraph", max_tokens=128)

    @sgl.function
    def suggest(s, topic):
        s += f"Tips for {topic}:\n"
        states = []
        for at in range(3):
            s += f"{at + 1}." + sgl.gen(f"tip{at}", stop=["\n", "."]) + "\n"
            states.append(expand(tip=s[f"tip{at}"]))  # runs on by itself
        for at, state in enumerate(states):
            s += f"Tip {at + 1}:" + state["paragraph"] + "\n"

    backend = mock({"1.": " eat", "2.": " sleep", "3.": " walk", "on  ?(.+):": " it helps"})
    state = suggest.run("health")
    assert state.text().endswith("Tip 1: it helps\nTip 2: it helps\nTip 3: it helps\n")
    assert len(backend.requests) == 6


@pytest.mark.parametrize("opened", [True, False])
def test_line_retrieval_and_multi_document_qa(opened: bool, mock: Make) -> None:
    parts = ["line 1: 17.", "line 2: 42.", "line 3: 5."]

    @sgl.function
    def retrieve(s):
        if opened:
            s += sgl.user_begin()
        s += "Remember:\n"
        forks = s.fork(len(parts), position_ids_offset=[100 * at for at in range(len(parts))])
        forks += lambda at: parts[at] + "\n"
        forks.join(mode="concate_and_append")
        s += "What is on line 2?"
        if opened:
            s += sgl.user_end() + sgl.assistant_begin()
        s += sgl.gen("answer", max_tokens=16)

    backend = mock("42.")
    assert retrieve.run()["answer"] == "42."
    content = "Remember:\nline 1: 17.\nline 2: 42.\nline 3: 5.\nWhat is on line 2?"
    assert backend.prompts == [f"USER:{content}\nASSISTANT:" if opened else content]


# ----------------------------------------------------------------------------------------- JSON


def test_json_decode_regex(mock: Make) -> None:
    @sgl.function
    def decode(s, document):
        s += document + "\n"
        with s.var_scope("json_output"):
            s += '{\n  "name": ' + sgl.gen("name", regex=REGEX_STR + ",", max_tokens=8) + "\n"
            s += '  "year": ' + sgl.gen("year", regex=REGEX_INT + "}", max_tokens=8)

    mock({'"name": ': '"Oslo",', '"year": ': "1048}"})
    warm_up, *states = decode.run_batch([{"document": "Oslo is old."}] * 3, num_threads=1)
    warm_up.sync()
    assert {state["json_output"] for state in states} == {'{\n  "name": "Oslo",\n  "year": 1048}'}
    assert json.loads(states[0]["json_output"]) == {"name": "Oslo", "year": 1048}


def test_long_json_decode(mock: Make) -> None:
    @sgl.function
    def decode(s, document):
        s += document + '\n{"place of birth": "' + sgl.gen("place of birth", 8, stop='"') + '",\n'
        s += '"trade": "' + sgl.gen("trade", 8, stop='"') + '"}'

    mock({"birth": 'Oslo", "', "trade": 'baker"'})
    state = decode.run("…")
    assert (state["place of birth"], state["trade"]) == ("Oslo", "baker")
    assert json.loads(state.text().partition("\n")[2]) == {
        "place of birth": "Oslo",
        "trade": "baker",
    }


def test_json_jump_forward_and_schema(mock: Make) -> None:
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "house": {"enum": ["north", "south"]},
            "age": {"type": "integer"},
        },
    }

    @sgl.function
    def character(s, name, regex=None, json_schema=None):
        s += sgl.user(f"{name} as JSON.")
        s += sgl.assistant(sgl.gen("json", 256, regex=regex, json_schema=json_schema))

    written = '{"name": "Ann", "house": "north", "age": 3}'
    mock([written, written, "Sure! " + written])
    assert json.loads(character.run("Ann", build_regex_from_object(json.dumps(schema)))["json"])
    assert json.loads(character.run("Ann", json_schema=json.dumps(schema))["json"])
    with pytest.raises(bl.ProgramError, match=r"Sure! .*not JSON"):
        character.run("Ann", json_schema=json.dumps(schema))["json"]


# -------------------------------------------------------------------------------- command line


def parsed(monkeypatch: pytest.MonkeyPatch, *flags: str) -> argparse.Namespace:
    monkeypatch.setattr(sys, "argv", ["bench.py", *flags])
    return add_common_sglang_args_and_parse(argparse.ArgumentParser())


def test_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    args = parsed(monkeypatch)
    assert vars(args) == {
        "parallel": 64,
        "host": "http://127.0.0.1",
        "port": 30000,
        "backend": "srt",
        "device": "auto",
        "result_file": "result.jsonl",
        "raw_result_file": None,
    }
    bl.set_default_backend(bl.Mock(name="the model"))
    assert select_sglang_backend(args).get_model_name() == "the model"
    args.backend = "srt-no-parallel"
    assert select_sglang_backend(args).get_model_name() == "the model"
    assert not sgl.global_config.enable_parallel_encoding
    args.backend = "gpt-4o-mini"
    assert isinstance(select_sglang_backend(args), sgl.OpenAI)
    args.backend = "vllm"
    with pytest.raises(ValueError, match="vllm"):
        select_sglang_backend(args)
