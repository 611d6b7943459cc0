"""Programs with turns, forks and streams; see `test_programs`."""

from __future__ import annotations

from typing import Any

from branchline.sglang.api import (
    assistant,
    assistant_begin,
    assistant_end,
    function,
    gen,
    image,
    system,
    user,
)
from branchline.sglang.tokenizers import get_tokenizer

MESSAGES = (4, 5)  # two turns of each, and perhaps the template's system turn


def test_mt_bench() -> None:
    """Two questions in one conversation."""

    @function
    def converse(s: Any, first: str, second: str) -> None:
        s += system("You answer in one sentence.")
        s += user(first)
        s += assistant(gen("first"))
        with s.user():
            s += second
        s += assistant_begin() + gen("second") + assistant_end()

    state = converse.run("What is a haiku?", "Write one about the sea.", max_new_tokens=64)
    messages = state.messages()
    assert len(messages) in MESSAGES, messages
    roles = [message["role"] for message in messages]
    assert roles == ["system", "user", "assistant", "user", "assistant"][-len(roles) :], roles
    assert messages[-1]["content"] == state["second"].lstrip(), messages


def test_expert_answer(check_answer: bool = True) -> None:
    """An expert is named first, then asked."""

    @function
    def ask(s: Any, question: str) -> None:
        s += user(f"Question: {question}\nWho knows this best? Name a profession.")
        s += assistant("It is a " + gen("expert", stop=[".", "\n"], max_tokens=16) + ".")
        s += user(f"You are a {s['expert'].strip()}. Answer in a few words: {question}")
        s += assistant(gen("answer", stop=[".", "\n"], max_tokens=32))

    state = ask.run(question="Which city is the capital of France?", temperature=0.1)
    if check_answer:
        assert "paris" in state.text().lower(), state.text()
    assert state["expert"] in state.messages()[-2]["content"] or not state["expert"].strip()


def test_parallel_decoding() -> None:
    """An outline, its points worked out in parallel, and a summary of them all."""

    @function
    def advise(s: Any, topic: str, points: int) -> None:
        s += f"Advice on {topic}, in {points} points:\n"
        for point in range(points):
            s += f"{point + 1}." + gen(f"point{point}", 16, stop=["\n", "."]) + "\n"
        forks = s.fork(points)
        for point in range(points):
            forks[point] += f"\nPoint {point + 1} in detail:"
            forks[point] += gen("detail", 64, stop="\n\n")
        forks.join()
        s += "\nIn detail:\n"
        for point in range(points):
            s += f"{point + 1}. " + forks[point]["detail"].strip() + "\n"
        s += "In one sentence:" + gen("summary", 32)

    state = advise.run("sleeping well", 5, temperature=0.3)
    assert isinstance(state["summary"], str)
    details = state["detail"]
    assert len(details) == 5, details
    assert all(detail.strip() in state.text() for detail in details), state.text()


def test_parallel_encoding(check_answer: bool = True) -> None:
    """Parts of a text that do not see each other, appended one after the other."""

    @function
    def answer(s: Any, question: str, parts: tuple[str, ...]) -> None:
        s += "A few statements:\n"
        forks = s.fork(len(parts))
        forks += lambda at: f"Statement {at + 1}: {parts[at]}\n"
        forks.join("concate_and_append")
        s += f"Question: {question}\nAnswer:" + gen("answer", max_tokens=16, temperature=0)

    statements = ("Ann is a doctor.", "The pilot is called Noah.", "Ben works in a bank.")
    state = answer.run("What is the name of the pilot?", statements)
    positions = [state.text().index(statement) for statement in statements]
    assert positions == sorted(positions), state.text()
    if check_answer:
        assert "Noah" in state["answer"], state["answer"]


def test_image_qa() -> None:
    """What is on a picture."""

    @function
    def look(s: Any, path: str) -> None:
        s += user(image(path) + "What do you see?")
        s += assistant(gen("answer"))

    state = look.run("example.png", temperature=0, max_new_tokens=64)
    assert state.messages()[-1]["content"], state.text()


def test_stream() -> None:
    """A text, and one variable of it, as they come."""

    @function
    def converse(s: Any, question: str) -> None:
        s += system("You answer in one sentence.")
        s += user(question)
        s += assistant(gen("answer", max_tokens=32))

    state = converse.run("What is a volcano?", stream=True)
    text = "".join(state.text_iter())
    assert text == state.text()
    state = converse.run("What is a volcano?", stream=True)
    answer = "".join(state.text_iter("answer"))
    assert answer == state["answer"]


def test_completion_speculative() -> None:
    """Fields between given marks, whether or not several come from one request."""

    def characters(s: Any) -> None:
        s += "Name: Ada\nBorn: 1815\nWork: the analytical engine\n\nName:"
        s += gen("name", stop="\n") + "\nBorn:" + gen("born", stop="\n")
        s += "\nWork:" + gen("work", stop="\n") + "\n"

    for program in (function(characters, num_api_spec_tokens=64), function(characters)):
        state = program.run(max_new_tokens=16)
        for name in ("name", "born", "work"):
            assert "\n" not in state[name], state.text()


def test_chat_completion_speculative() -> None:
    """Several gens in one assistant turn."""

    @function(num_api_spec_tokens=256)
    def invent(s: Any) -> None:
        s += system("You invent characters.")
        s += user("Give me a name and a birthday, each on a line.")
        s += assistant(
            "Name:" + gen("name", stop="\n") + "\nBirthday:" + gen("birthday", stop="\n")
        )

    state = invent.run(max_new_tokens=32)
    assert f"Name:{state['name']}\nBirthday:{state['birthday']}" in state.text()


def test_gen_min_new_tokens(model_path: str, min_tokens: int = 64, max_tokens: int = 128) -> None:
    """An answer that may not end before so many tokens."""

    @function
    def converse(s: Any) -> None:
        s += user("Which city is the capital of France?")
        s += assistant(gen("answer", min_tokens=min_tokens, max_tokens=max_tokens))

    tokens = get_tokenizer(model_path).encode(converse.run()["answer"])
    assert len(tokens) >= min_tokens, len(tokens)
