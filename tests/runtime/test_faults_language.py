# ruff: noqa: PLW2901 - a loop over branches appends to them with +=

"""Faults that other languages had with `select` and `fork`, through the whole runtime on the stub.

The stub's distribution is known: a logit of 10 for the one token that the prefix makes, 0 for all
others. So what is right can be computed here, token by token.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest

import branchline as bl
from branchline import eventloop
from branchline.client import Client
from branchline.runtime.engine import LocalTransport

from .stub import VOCAB, mix, next_token
from .whole import Letters, Whole, ids_of, right, text_of

if TYPE_CHECKING:
    from collections.abc import Iterator

NORMAL = math.log(math.exp(10) + VOCAB - 1)
METHODS = {
    "length": bl.token_length_normalized,
    "greedy": bl.greedy_token_selection,
    "unconditional": bl.unconditional_likelihood_normalized,
}


@pytest.fixture
def backend() -> Iterator[Client]:
    whole = Whole(pages=4000)
    wire = LocalTransport()
    wire.service = whole.service
    whole.service._post = wire.post
    whole.loop.start()
    try:
        with Client(wire, timeout=10) as client:
            yield client
    finally:
        whole.loop.stop()
    whole.loop.check()
    whole.harness.check_idle()


def logprobs(ids: list[int], start: int) -> list[float]:
    """Of the tokens from `start` on, given those before; the first of all has none and counts 0."""
    found, prefix = [], 0
    for position, token in enumerate(ids):
        if position >= start:
            likely = position and next_token(prefix) == token
            found.append((10 if likely else 0) - NORMAL if position else 0.0)
        prefix = mix(prefix, token)
    return found


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def greedy_key(given: list[float], width: int) -> list[float]:
    return given + [mean(given)] * (width - len(given))


def decide(method: str, prompt: str, choices: list[str]) -> tuple[str, list[list[float]]]:
    """What SGLang's rules take, from the distribution itself."""
    rows, alone = [], []
    for choice in choices:
        ids = ids_of(prompt + choice)
        before = ids_of(prompt)
        start = len(before) - (ids[len(before) - 1] != before[-1])
        rows.append(logprobs(ids, start))
        alone.append(logprobs(ids[start:], 0))
    width = max(map(len, rows))
    keys = {
        "length": [[mean(row)] for row in rows],
        "greedy": [greedy_key(row, width) for row in rows],
        "unconditional": [
            [mean([a - b for a, b in zip(row, other, strict=True)])]
            for row, other in zip(rows, alone, strict=True)
        ],
    }[method]
    best = max(range(len(choices)), key=keys.__getitem__)  # the first of those that tie
    return choices[best], rows


def likely(prompt: str, length: int) -> str:
    return text_of(right(ids_of(prompt), length, ignore_eos=True))


PROMPTS = ["Hello", "at", "Whet", "abcdefgabcdefg"]


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("method", METHODS)
def test_select_decides_as_the_distribution_says(method: str, prompt: str, backend: Client) -> None:
    """A likely choice, its prefix, its continuation, one that merges with the prompt, a tie."""
    good = likely(prompt, 3)
    menus = [
        [good, "ABC"],
        ["ABC", good, good[:1], good + "ABCDEFG"],
        ["hat", "hats", "at"],
        ["XYZ", "XYZ", "ZYX"],
        [good[:2] + "QQQQ", "Q", good[:1] + "Q"],
    ]

    @bl.function
    def pick(s, menu):
        s += prompt
        s += bl.select("it", menu, choices_method=METHODS[method])

    for menu in menus:
        state = pick.run(menu, backend=backend)
        taken, rows = decide(method, prompt, menu)
        assert state["it"] == taken
        assert state.text() == prompt + taken
        meta = state.get_meta_info("it")
        for choice, triples, row in zip(menu, meta["input_token_logprobs"], rows, strict=True):
            assert [triple[0] for triple in triples] == pytest.approx(row, abs=1e-5), choice
        assert meta["normalized_prompt_logprobs"] == pytest.approx(
            [mean(r) for r in rows], abs=1e-5
        )


def test_an_empty_choice_is_an_error_of_that_select_only(backend: Client) -> None:
    @bl.function
    def pick(s):
        with_empty, good = s.fork(2)
        with_empty += "Hello" + bl.select("it", ["a", ""])
        good += "Hello" + bl.select("it", ["a", "b"])
        return with_empty, good

    with_empty, good = pick.run(backend=backend).ret_value
    with pytest.raises(bl.ProgramError, match="'' has no tokens"):
        with_empty["it"]
    assert good["it"] in ("a", "b")


@pytest.mark.parametrize("size", [1, 3])
def test_children_of_a_fork_share_their_parents_pages(size: int, backend: Client) -> None:
    """A fork inside a turn, before the parent has been computed; and another below it."""
    common = "common" * 10

    @bl.function
    def family(s):
        with s.user():
            s += common
            children = s.fork(size)
            s += "Parent" + bl.gen("own", max_tokens=4, ignore_eos=True)
        for i, child in enumerate(children):
            child += "ABC"[i] + bl.gen("x", max_tokens=4, ignore_eos=True)
            grandchildren = child.fork(2)
            for j, grandchild in enumerate(grandchildren):
                grandchild += "XY"[j] + bl.gen("y", max_tokens=4, ignore_eos=True)
            grandchildren.join()
        return children

    state = family.run(temperature=0, backend=backend)
    start = "USER:" + common
    own = likely(start + "Parent", 4)
    assert state["own"] == own
    assert "x" not in state
    for i, child in enumerate(state.ret_value):
        said = start + "ABC"[i]
        x = likely(said, 4)
        assert child.text() == said + x
        ys = [likely(said + x + letter, 4) for letter in "XY"]
        assert (child["x"], child["y"]) == (x, ys)
    info = eventloop.run(backend.info())
    tails = len("Parent") + 4 + size * (1 + 4 + 2 * (1 + 4))
    assert info.computed_prompt_tokens <= len(Letters().encode((("program", start),))) + tails
