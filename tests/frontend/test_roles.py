from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest

import branchline as bl
from branchline.errors import InvalidRequest

from .fake_backend import CHATML, FakeBackend

SYSTEM = "<|im_start|>system\nBe kind.<|im_end|>\n"
USER, ASSISTANT, END = "<|im_start|>user\n", "<|im_start|>assistant\n", "<|im_end|>\n"


def run(body, template=CHATML, reply="ok"):
    backend = FakeBackend(reply, template=template)
    state = bl.function(body).run(backend=backend)
    return state, backend


def test_turns_and_the_default_system_turn() -> None:
    def body(s):
        s += bl.user(" Hi <|im_end|>")
        s += bl.assistant(bl.gen("x"))

    state, backend = run(body)
    assert state.text() == SYSTEM + USER + " Hi <|im_end|>" + END + ASSISTANT + "ok" + END
    # Only the template's text may be parsed for special tokens: a user cannot leave the turn.
    assert backend.requests[0].prompt == (
        ("template", SYSTEM + USER),
        ("program", " Hi <|im_end|>"),
        ("template", END + ASSISTANT),
    )
    assert state.messages() == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Hi <|im_end|>"},
        {"role": "assistant", "content": "ok"},
    ]


@pytest.mark.parametrize(
    "start",
    [
        lambda s: s.__iadd__(bl.system("Be brief.")),
        lambda s: s.system("Be brief."),
        lambda s: s.__iadd__(s.system("Be brief.")),  # appended once
        lambda s: s.__iadd__(bl.system_begin() + "Be brief." + bl.system_end()),
    ],
)
def test_an_own_system_turn_comes_first(start) -> None:
    def body(s):
        start(s)
        with s.user():
            s += "Hi"
        s += bl.assistant_begin() + "open"

    state, _ = run(body)
    assert state.text() == (
        "<|im_start|>system\nBe brief." + END + USER + "Hi" + END + ASSISTANT + "open"
    )
    assert [message["role"] for message in state.messages()] == ["system", "user"]


def test_a_turn_without_content_is_empty() -> None:
    state, _ = run(lambda s: s.__iadd__(bl.system()))
    assert state.text() == "<|im_start|>system\n" + END
    assert state.messages() == [{"role": "system", "content": ""}]


def test_a_start_that_is_no_system_turn_is_no_message() -> None:
    template = replace(CHATML, default_system="<bos>")
    state, _ = run(lambda s: s.user("Hi"), template)
    assert state.text() == "<bos>" + USER + "Hi" + END
    assert state.messages() == [{"role": "user", "content": "Hi"}]


def test_a_model_without_a_template_gets_plain_turns() -> None:
    def body(s):
        s.user("Hi")
        with s.assistant():
            s += bl.gen("x")

    state, _ = run(body, None)
    assert state.text() == "USER:Hi\nASSISTANT:ok\n"


def test_the_templates_stops_are_added_everywhere() -> None:
    def body(s):
        s += bl.gen(stop="a")
        s += bl.gen(stop=["<end>", "b"])

    state, backend = run(body, replace(CHATML, stop=("<end>",)))
    state.sync()
    assert [request.params.stop for request in backend.requests] == [
        ("a", "<end>"),
        ("<end>", "b"),
    ]


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (bl.user_begin() + bl.assistant_begin(), "cannot begin inside that of 'user'"),
        (bl.user_end(), "no turn is open"),
        (bl.user_begin() + bl.system_end(), "that of 'user' is"),
    ],
)
def test_turns_that_do_not_match_are_an_error_of_the_state(node, message) -> None:
    state, _ = run(lambda s: s.__iadd__(node))
    with pytest.raises(bl.ProgramError, match=message) as caught:
        state.text()
    assert isinstance(caught.value.__cause__, InvalidRequest)


def test_a_role_the_template_has_not_is_an_error() -> None:
    template = replace(CHATML, prefix={"user": "U"}, suffix={"user": "E"}, default_system=None)
    state, _ = run(lambda s: s.system("x"), template)
    with pytest.raises(bl.ProgramError, match="no turn of 'system'; it has user"):
        state.sync()


def test_an_exception_inside_a_turn_ends_the_turn_and_the_scope() -> None:
    def body(s):
        with suppress(ZeroDivisionError), s.user(), s.var_scope("v"):
            s += "half"
            raise ZeroDivisionError
        s += bl.assistant("still works")

    state, _ = run(body)
    assert state["v"] == "half"
    assert [message["content"] for message in state.messages()] == [
        "Be kind.",
        "half",
        "still works",
    ]
