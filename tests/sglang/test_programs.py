"""The programs of `sglang.test.test_programs`: on a mock that says the right thing, and the wrong.

Where a model must write what a constraint asks for, the mock does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import branchline as bl
from branchline.sglang import test_programs as programs
from branchline.sglang.text_programs import OWN_QUESTIONS

if TYPE_CHECKING:
    from collections.abc import Callable

CITY = {
    '"name": ': '"Lisbon",',
    '"population": ': "545000,",
    '"latitude": ': "38.72\n",
}
FIELDS = {"Name:": " Grace\n", "Born:": " 1906\n", "Work:": " compilers\n", "Birthday:": " May 1\n"}


def right_end(prompt: str) -> str:
    asked = max(OWN_QUESTIONS, key=lambda question: prompt.rfind(question[0]))
    return asked[1][asked[2]]


# program: what the mock answers and picks, and the requests that it takes
RIGHT: dict[str, tuple[Any, Any, int]] = {
    "test_few_shot_qa": (
        {
            "United States": " Washington, D.C.\n",
            "Japan": " Tokyo\n",
            "United Kingdom": " London\n",
            "China": " Beijing\nQ:",
        },
        None,
        4,
    ),
    "test_mt_bench": ({"haiku": "A short poem.", "the sea": " Waves, and again waves."}, None, 2),
    "test_select": (
        "",
        {"wonderful": "positive", "Loud, slow": "negative", "in a box": "neutral"},
        3,
    ),
    "test_decode_int": ({"A day has": "24", "leap year has": "365 days"}, None, 2),
    "test_decode_json_regex": (CITY, None, 3),
    "test_decode_json": (CITY, None, 3),
    "test_expert_answer": (
        {"Name a profession": "geographer.", "Answer in a few words": " Paris."},
        None,
        2,
    ),
    "test_tool_use": ({r"calculate\(257, ": "983)", "257 times 983 is": "252631."}, None, 2),
    "test_react": (
        {
            "Thought 1:": " I look Finland up.\nAction 1: Search",
            r"Action 1: Search\[": "Finland]",
            "Observation 1:": " 188,000 lakes.\n",
            "Thought 2:": " That is many.\n",
            r"Action 2: Finish\[": "Finland]",
        },
        ["Search[", "Finish["],
        7,
    ),
    "test_parallel_decoding": ("Some advice.", None, 11),
    "test_parallel_encoding": (" Noah", None, 1),
    "test_stream": ("A mountain with a fire in it.", None, 2),
    "test_regex": ("8.8.8.8", None, 1),
    "test_dtype_gen": (
        {"first month": '"January"', "in a year": "12", "pi": "3.14\n", "even": "True"},
        None,
        4,
    ),
    "test_completion_speculative": (FIELDS, None, 6),
    "test_chat_completion_speculative": (FIELDS, None, 2),
    "test_hellaswag_select": ("", right_end, 4),
}
# Those that can be told to be content with any answer are told so: then what is left must hold.
CONTENT = ("test_select", "test_expert_answer", "test_parallel_encoding")
# What they assert holds for any text.
ANY_TEXT = {
    "test_mt_bench",
    "test_parallel_decoding",
    "test_stream",
    "test_completion_speculative",
    "test_chat_completion_speculative",
    "test_hellaswag_select",
}


@pytest.mark.parametrize("name", RIGHT)
def test_runs(name: str, mock: Callable[..., bl.Mock]) -> None:
    answers, picks, requests = RIGHT[name]
    backend = mock(answers, select=picks)
    result = getattr(programs, name)()
    assert len(backend.requests) == requests
    if name == "test_hellaswag_select":
        accuracy, seconds = result
        assert accuracy == 1.0
        assert 0 < seconds < 5


@pytest.mark.parametrize("name", sorted(RIGHT.keys() - ANY_TEXT))
def test_sees_a_wrong_answer(name: str, mock: Callable[..., bl.Mock]) -> None:
    mock("I do not know 7", select=lambda _: None)
    with pytest.raises((AssertionError, bl.ProgramError, KeyError, ValueError)):
        getattr(programs, name)()


@pytest.mark.parametrize("name", CONTENT)
def test_may_be_content(name: str, mock: Callable[..., bl.Mock]) -> None:
    mock("I do not know", select=lambda _: None)
    getattr(programs, name)(check_answer=False)


def test_hellaswag_counts_what_is_wrong(mock: Callable[..., bl.Mock]) -> None:
    mock("", select=lambda _: None)  # the first one: right in two of the four
    accuracy, _ = programs.test_hellaswag_select()
    assert accuracy == 0.5


@pytest.mark.usefixtures("words")
def test_min_new_tokens(mock: Callable[..., bl.Mock]) -> None:
    backend = mock("Paris " * 80)
    programs.test_gen_min_new_tokens("any", min_tokens=64, max_tokens=128)
    assert backend.requests[0].params.min_tokens == 64
    mock("Paris")
    with pytest.raises(AssertionError):
        programs.test_gen_min_new_tokens("any", min_tokens=64, max_tokens=128)


def test_an_image_is_refused(mock: Callable[..., bl.Mock]) -> None:
    mock("a taxi")
    with pytest.raises(bl.InvalidRequest, match="images are not served"):
        programs.test_image_qa()


def test_all_of_them_are_here() -> None:
    beside = {"test_image_qa", "test_gen_min_new_tokens"}
    assert set(programs.__all__) == RIGHT.keys() | beside
