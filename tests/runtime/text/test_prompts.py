"""What a prompt's pieces are as ids: joining, special tokens, BOS, ids, choices."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from branchline.errors import InvalidRequest

from .small import make, program

MERGES = ("h e", "l l", "he ll", "hell o", "Ċ hello", "Ċ Ċ", "Ġ Y", "a b", "< |", "n d", "e nd")
SMALL = make(merges=MERGES, user_defined=("<think>",))
START, END, THINK = SMALL.vocab_size - 3, SMALL.vocab_size - 2, SMALL.vocab_size - 1


def test_only_template_text_is_parsed_for_special_tokens():
    prompt = (("template", "<|start|>user\n"), ("program", "a<|end|>b"), ("template", "<|end|>"))
    ids = SMALL.encode(prompt)
    assert (ids[0], ids[-1]) == (START, END)
    assert START not in ids[1:-1]
    assert END not in ids[1:-1]
    assert SMALL.decode(ids[1:-1], skip_special_tokens=False) == "user\na<|end|>b"


@given(st.lists(st.tuples(st.sampled_from(["template", "program"]), st.text(max_size=5))))
@settings(max_examples=100, deadline=None)
def test_where_text_is_divided_into_pieces_does_not_matter(pieces):
    text = "".join(text for _, text in pieces)
    ids = SMALL.encode((("template", "<|start|>"), *pieces, ("template", "<|end|>")))
    assert ids == [START, *SMALL.encode((("tokens", (0,)), *program(text)))[1:], END]


def test_text_is_joined_but_not_across_ids():
    joined = SMALL.encode((("template", "\n"), ("program", ""), ("program", "hello")))
    assert joined == SMALL.encode(program("\nhello"))
    newline, hello = SMALL.encode(program("\n")), SMALL.encode(program("hello"))
    prompt = (("program", "\n"), ("tokens", (65, 66)), ("tokens", (67,)), ("program", "hello"))
    assert SMALL.encode(prompt) == [*newline, 65, 66, 67, *hello]
    nothing_between = (("program", "\n"), ("tokens", ()), ("program", "hello"))
    assert SMALL.encode(nothing_between) == joined


def test_a_special_token_is_not_put_together_from_pieces_that_a_program_wrote():
    halves = SMALL.encode((("template", "<|en"), ("program", "d|>")))
    assert END not in halves
    assert SMALL.decode(halves) == "<|end|>"


def test_an_added_token_that_is_not_special_is_text_everywhere():
    assert SMALL.encode(program("<think>")) == [THINK]
    assert SMALL.encode((("template", "<think>"),)) == [THINK]


def test_the_longest_special_token_wins():
    tokenizer = make(control=("<|a|>", "<|a|><|b|>", "<|b|>"))
    first = tokenizer.vocab_size - 3
    prompt = (("template", "<|a|><|b|><|a|>x<|b|>"),)
    x = tokenizer.encode(program("x"))
    assert tokenizer.encode(prompt) == [first + 1, first, *x, first + 2]


BOS = make(ggml__bos_token_id=257, ggml__add_bos_token=True)


def test_bos_comes_once_and_first():
    a = BOS.encode(program("a"))
    assert a[0] == 257
    assert a.count(257) == 1
    assert BOS.encode((("template", "<|start|>a"),))[1] == BOS.encode(program("a"))[1]
    prompt = (("tokens", (65,)), ("program", "a"))
    assert BOS.encode(prompt) == [257, 65, a[1]]


def test_bos_is_not_doubled_where_a_template_begins_with_it():
    tokenizer = make(ggml__bos_token_id=257, ggml__add_bos_token=True)
    assert tokenizer.encode((("template", "<|start|>a"),)).count(257) == 1
    assert tokenizer.encode((("program", "<|start|>a"),)).count(257) == 1  # as text: one is added


@pytest.mark.parametrize("prompt", [(), program(""), (("tokens", ()), ("template", ""))])
def test_an_empty_prompt_is_refused_unless_bos_is_there(prompt):
    with pytest.raises(ValueError, match="the prompt is empty"):
        SMALL.encode(prompt)
    assert BOS.encode(prompt) == [257]


@pytest.mark.parametrize("token", [-1, SMALL.vocab_size, 1 << 40])
def test_ids_outside_the_vocabulary_are_refused(token):
    with pytest.raises(InvalidRequest, match=f"token id {token} is not in the vocabulary"):
        SMALL.encode((("program", "a"), ("tokens", (0, token))))
    with pytest.raises(InvalidRequest, match=f"token id {token}"):
        SMALL.decode([token])


@pytest.mark.parametrize("kind", ["program", "template"])
def test_text_that_is_not_unicode_is_refused(kind):
    with pytest.raises(InvalidRequest, match="surrogate"):
        SMALL.encode(((kind, "a\ud800"),))


def test_a_choice_is_tokenized_together_with_the_prompt():
    prompt = program("a ")
    ids, first = SMALL.encode_choice(prompt, "YES")  # the space goes to " Y"
    assert ids == SMALL.encode(program("a YES"))
    assert first == 1
    assert SMALL.decode(ids[first:]) == " YES"
    ids, first = SMALL.encode_choice(program("a"), "!")
    assert (SMALL.decode(ids[:first]), SMALL.decode(ids[first:])) == ("a", "!")


def test_a_choice_that_would_swallow_the_whole_prompt_is_tokenized_alone():
    assert len(SMALL.encode(program("ab"))) == 1
    ids, first = SMALL.encode_choice(program("a"), "b")
    assert (ids, first) == ([*SMALL.encode(program("a")), *SMALL.encode(program("b"))], 1)


def test_a_choice_that_is_a_prefix_of_another_or_empty():
    short, long = (SMALL.encode_choice(program("x "), choice) for choice in ("Y", "YES"))
    assert short[1] == long[1] == 1
    assert long[0][: len(short[0])] == short[0]
    with pytest.raises(InvalidRequest, match="the choice '' has no tokens"):
        SMALL.encode_choice(program("x"), "")


def test_a_choice_is_never_parsed_for_special_tokens():
    ids, first = SMALL.encode_choice((("template", "<|start|>"),), "<|end|>")
    assert first == 1
    assert END not in ids
