from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

import branchline as bl
from branchline.errors import InvalidRequest
from branchline.reasoning import FORMATS, Splitter, split

from .fake_backend import CHATML, FakeBackend

THOUGHT = "<think>\nLet me see. </think>\n\n It is 4. "


@pytest.mark.parametrize(
    ("model", "text", "parts"),
    [
        ("qwen3", THOUGHT, ("Let me see.", "It is 4.")),
        ("qwen3", " It is 4. ", ("", " It is 4. ")),
        ("qwen3", "<think>never ends ", ("never ends", "")),
        ("qwen3", "<thinking is hard", ("", "<thinking is hard")),
        ("qwen3", "<th", ("", "<th")),
        ("qwen3", "no mark </think> x", ("", "no mark </think> x")),
        ("deepseek-r1", THOUGHT, ("Let me see.", "It is 4.")),
        ("deepseek-r1", "Let me see.</think>It is 4.", ("Let me see.", "It is 4.")),
        ("deepseek-r1", " never ends </thi", ("never ends </thi", "")),
        ("deepseek-r1", "", ("", "")),
        ("kimi", "◁think▷a◁/think▷b", ("a", "b")),
        ("qwen3", "<think>a</think>b</think>c", ("a", "b</think>c")),
    ],
)
def test_reasoning_and_answer(model, text, parts) -> None:
    assert split(text, FORMATS[model]) == parts


def by_pattern(text, opened):
    """The same by a regular expression on the whole text."""
    start = r"\s*(?:<think>)?" if opened else r"\s*<think>"
    found = re.match(f"{start}(.*?)(?:</think>(.*))?$", text, re.DOTALL)
    if found is None:
        return "", text
    return found.group(1).strip(), (found.group(2) or "").strip()


PIECES = st.lists(st.sampled_from(["<think>", "</think>", "<", "th", "ink>", " ", "\n", "a", "</"]))


@given(PIECES, st.booleans())
def test_a_stream_gives_what_the_whole_text_has(pieces, opened) -> None:
    marks = bl.ReasoningFormat(opened=opened)
    splitter = Splitter(marks)
    given_out = [splitter.push(piece) for piece in pieces] + [splitter.finish()]
    text = "".join(pieces)
    streamed = tuple("".join(part) for part in zip(*given_out, strict=True))
    assert streamed == split(text, marks) == by_pattern(text, opened)


def chat(s):
    s += bl.user("2+2?")
    s += bl.separate_reasoning(bl.assistant("Well: " + bl.gen("x") + "!"), "qwen3")
    s += bl.user("Sure?") + bl.assistant(bl.gen("y"))


@pytest.mark.parametrize("stream", [False, True])
def test_the_reasoning_is_kept_apart_and_the_rest_of_the_turn_stays(stream) -> None:
    backend = FakeBackend(lambda text: THOUGHT if "Sure" not in text else "yes", template=CHATML)
    state = bl.function(chat).run(backend=backend, stream=stream)
    assert state["x"] == state.text_of("x") == "It is 4."
    assert state["x_reasoning_content"] == "Let me see."
    assert state["y"] == "yes"
    assert state.messages()[2]["content"] == "Well: It is 4.!"
    assert "Let me see" not in backend.prompts[1]
    assert "Well: It is 4.!" in backend.prompts[1]
    assert state.get_meta_info("x")["completion_tokens"] == len(THOUGHT)
    assert "".join(state.text_iter()) == state.text()


def test_both_parts_can_be_streamed() -> None:
    state = bl.function(chat).run(
        backend=FakeBackend(lambda text: THOUGHT if "Sure" not in text else "yes"), stream=True
    )
    assert [*state.text_iter("x_reasoning_content")][:3] == ["L", "e", "t"]
    assert "".join(state.text_iter("x_reasoning_content")) == "Let me see."
    assert "".join(state.text_iter("x")) == "It is 4."


@pytest.mark.parametrize("stream", [False, True])
def test_the_reasoning_may_stay_in_the_text(stream) -> None:
    def body(s):
        s += "Q" + bl.separate_reasoning(bl.gen("x"), keep=True) + bl.gen("y")

    backend = FakeBackend(lambda text: THOUGHT if text == "Q" else "yes")
    state = bl.function(body).run(backend=backend, stream=stream)
    assert (state["x"], state["x_reasoning_content"]) == ("It is 4.", "Let me see.")
    assert state.text() == "Q" + THOUGHT + "yes"
    # The ids go back as the model wrote them.
    assert backend.requests[1].prompt[1] == ("tokens", tuple(map(ord, THOUGHT)))


def test_several_choices_a_type_and_a_gen_without_a_name() -> None:
    def body(s):
        s += "Q" + bl.separate_reasoning(bl.gen("x", n=2, type=int) + "," + bl.gen())

    backend = bl.Mock(["<think>a</think>1", "<think>b</think>2", "<think>c</think>3"])
    state = bl.function(body).run(backend=backend)
    assert state["x"] == [1, 2]
    assert state["x_reasoning_content"] == ["a", "b"]
    assert state.text() == "Q1,3"


def test_a_failure_is_the_reasonings_too() -> None:
    state = bl.function(lambda s: s.__iadd__("Q" + bl.separate_reasoning(bl.gen("x")))).run(
        backend=FakeBackend(bl.RuntimeUnavailable("gone"))
    )
    with pytest.raises(bl.ProgramError, match="gone"):
        state["x_reasoning_content"]


def test_an_own_format() -> None:
    marks = bl.ReasoningFormat("[[", "]]")
    state = bl.function(lambda s: s.__iadd__("Q" + bl.separate_reasoning(bl.gen("x"), marks))).run(
        backend=bl.Mock("[[ hm ]] so")
    )
    assert (state["x_reasoning_content"], state["x"]) == ("hm", "so")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((None,), "needs an expression with a gen"),
        ((bl.user("x"),), "needs an expression with a gen"),
        ((bl.gen("x"), "gpt-9"), "model_type='gpt-9': known are deepseek-r1"),
    ],
)
def test_what_has_no_reasoning_is_refused(arguments, says) -> None:
    with pytest.raises(InvalidRequest, match=says):
        bl.separate_reasoning(*arguments)
