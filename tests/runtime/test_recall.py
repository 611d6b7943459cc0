"""Answers sent back as text: the very ids again, where all before them is the same too."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from branchline.protocol import Conversation, Finish, Generate, ModelCard
from branchline.runtime import assembly
from branchline.runtime.admission import Admission
from branchline.runtime.config import RuntimeConfig
from branchline.runtime.recall import Recall
from branchline.sampling_params import SamplingParams

from .stub import EOS, VOCAB, continuation, make_harness, make_request
from .whole import LETTERS, Letters, Whole, ids_of, text_of


class ChatLetters(Letters):
    """A template of colons, which are no tokens; `.` is EOS and special."""

    special_ids = frozenset({EOS})

    def converse(self, conversation: Conversation):
        pieces = []
        for message in conversation.messages:
            mark = ":" if message["role"] == "user" else "::"
            pieces += [("template", mark), ("program", message["content"]), ("template", "Z")]
        return tuple(pieces)


def chat_runtime(*, recalls: bool = True) -> Whole:
    whole = Whole()
    tokenizer = ChatLetters()
    card = whole.service._admission.card
    recall = Recall(tokenizer) if recalls else None  # type: ignore[arg-type]
    whole.service._admission = Admission(tokenizer, card, recall)  # type: ignore[arg-type]
    return whole


def say(whole: Whole, rid: str, *contents: str, salt: str | None = None, **params):
    """Ask with a whole conversation; the ids, the text and the usage of the answer."""
    roles = ("user", "assistant") * len(contents)
    messages = tuple(
        {"role": role, "content": text} for role, text in zip(roles, contents, strict=False)
    )
    given_params = SamplingParams(**{"max_tokens": 12, "temperature": 0.0, **params})
    conversation = Conversation(messages)
    whole.tell(Generate(rid, (), given_params, cache_salt=salt, conversation=conversation))
    whole.run()
    assert not whole.failures(rid)
    last = whole.updates(rid)[-1]
    return whole.ids(rid), whole.text(rid), last.usage


def first_question() -> str:
    """One that the model answers with a `t` and then an `h`, which read as the one token `th`."""
    letters = [c for c in LETTERS if c not in ".Zth"]
    for question in (a + b + c for a in letters for b in letters for c in letters):
        answer = continuation(ids_of(question + "Z"), 12)
        if ids_of(text_of(answer)) != answer and EOS not in answer:
            return question
    raise AssertionError("there is one")


QUESTION = first_question()


@pytest.mark.parametrize("recalls", [True, False])
def test_the_second_turn_hits_all_of_the_first(recalls):
    whole = chat_runtime(recalls=recalls)
    ids, text, usage = say(whole, "1", QUESTION)
    assert usage.recalled_tokens == 0
    assert ids_of(text) != ids, "tokenized anew it has other ids"
    _, _, usage = say(whole, "2", QUESTION, text, "more")
    first = len(QUESTION) + 1
    if recalls:
        assert usage.recalled_tokens == len(ids)
        assert usage.cached_tokens == first + len(ids) - 1, "but the last, which was not computed"
        assert whole.loop.counters.recalled_tokens == len(ids)
    else:
        assert usage.recalled_tokens == 0
        assert usage.cached_tokens < first + len(ids) - 1


def test_turn_after_turn():
    whole = chat_runtime()
    contents = [QUESTION]
    written = 0
    for turn in range(5):
        ids, text, usage = say(whole, str(turn), *contents)
        assert usage.recalled_tokens == written
        kept = ids[:-1] if ids[-1] == EOS else ids
        written += len(kept)
        contents += [text, "more"]


def test_the_answer_is_that_of_the_same_ids():
    whole = chat_runtime()
    ids, text, _ = say(whole, "1", QUESTION)
    said, _, _ = say(whole, "2", QUESTION, text, "more")
    prompt = [*ids_of(QUESTION + "Z"), *ids, *ids_of("ZmoreZ")]
    assert said == continuation(prompt, 12)


def test_only_where_everything_before_is_the_same():
    whole = chat_runtime()
    _, text, _ = say(whole, "1", QUESTION)
    for rid, contents, salt in (
        ("other question", ("x" + QUESTION, text, "more"), None),
        ("other answer", (QUESTION, text + "x", "more"), None),
        ("later", (QUESTION, "x", "y", text, "more"), None),
        ("salt", (QUESTION, text, "more"), "s"),
        ("salt like none", (QUESTION, text, "more"), ""),
    ):
        _, _, usage = say(whole, rid, *contents, salt=salt)
        assert usage.recalled_tokens == 0, rid
    for rid in ("mine", "mine again"):
        _, _, usage = say(whole, rid, QUESTION, text, "more")
        assert usage.recalled_tokens == 12
    say(whole, "s1", QUESTION, salt="s")
    _, _, usage = say(whole, "s2", QUESTION, text, "more", salt="s")
    assert usage.recalled_tokens == 12


def test_each_choice_is_remembered():
    whole = chat_runtime()
    say(whole, "1", QUESTION, n=3, temperature=1.0, seed=1)
    for index in range(3):
        mine = [update for update in whole.updates("1") if update.index == index]
        text = "".join(update.text for update in mine)
        kept = mine[-1].finish.kept
        if kept:
            _, _, usage = say(whole, f"2 {index}", QUESTION, text, "more")
            assert usage.recalled_tokens == kept


def test_a_prompt_that_is_no_conversation_is_left_alone():
    whole = chat_runtime()
    _, text, _ = say(whole, "1", QUESTION)
    pieces = (("program", QUESTION), ("template", "Z"), ("program", text), ("template", "Z"))
    whole.tell(Generate("2", pieces, SamplingParams(max_tokens=1)))
    whole.run()
    assert whole.updates("2")[-1].usage.recalled_tokens == 0


def answered(prompt: list[int], ids: list[int], tail: str = ""):
    request = make_request(prompt)
    request.tokens += ids
    request.text.text = text_of(ids) + tail
    return request, Finish("stop", kept=len(ids), tail=tail)


def test_a_stop_inside_a_token_leaves_the_rest_as_text():
    recall = Recall(ChatLetters())  # type: ignore[arg-type]
    recall.remember(*answered(ids_of("Q"), [5, 6], tail="t"))
    prompt = (("program", "Q"), ("program", text_of([5, 6]) + "t"), ("template", "Z"))
    expected = (("program", "Q"), ("tokens", (5, 6)), ("program", "t"), ("template", "Z"))
    assert recall.apply(prompt, None) == (expected, 2)


def test_an_answer_with_a_special_token_is_not_kept():
    """What a client sends is text, whatever the model once wrote."""
    recall = Recall(ChatLetters())  # type: ignore[arg-type]
    recall.remember(*answered(ids_of("Q"), [5, EOS, 6]))
    prompt = (("program", "Q"), ("program", text_of([5, EOS, 6])), ("template", "Z"))
    assert recall.apply(prompt, None) == (prompt, 0)


def test_the_oldest_go():
    by_count = Recall(ChatLetters(), most_answers=2)  # type: ignore[arg-type]
    by_tokens = Recall(ChatLetters(), most_tokens=9)  # type: ignore[arg-type]

    def knows(recall: Recall, first: int) -> bool:
        text = text_of([first, 5, 6, 7])
        return recall.apply((("program", "Q"), ("program", text)), None)[1] == 4

    for recall in (by_count, by_tokens):
        for first in (11, 12):
            recall.remember(*answered(ids_of("Q"), [first, 5, 6, 7]))
        recall.remember(*answered(ids_of("Q"), [12, 5, 6, 7]))  # again: no second one
        assert knows(recall, 12)
        assert knows(recall, 11), "and is used last"
        recall.remember(*answered(ids_of("Q"), [13, 5, 6, 7]))
        assert [knows(recall, first) for first in (11, 12, 13)] == [True, False, True]
        assert (len(recall._answers), recall._tokens) == (2, 8)
        assert set(recall._texts.values()) == {1}


letters = st.lists(st.integers(1, VOCAB - 1), min_size=1, max_size=6)


@given(st.lists(letters, min_size=2, max_size=6), st.lists(st.booleans(), min_size=6, max_size=6))
def test_the_text_never_changes(turns, kept):
    """Whatever was remembered, a prompt reads as before and its ids are those of what it says."""
    tokenizer = ChatLetters()
    recall = Recall(tokenizer)  # type: ignore[arg-type]
    texts = [text_of(ids) for ids in turns]
    pieces = [(("template", ":"), ("program", text), ("template", "Z")) for text in texts]
    prompt: tuple = ()
    for ids, keep, turn in zip(turns, kept, pieces, strict=False):
        if keep and prompt:
            before, _ = recall.apply((*prompt, turn[0]), None)
            recall.remember(*answered(tokenizer.encode(before), ids))
        prompt = (*prompt, *turn)
    replaced, count = recall.apply(prompt, None)
    assert text_of(tokenizer.encode(replaced)) == text_of(tokenizer.encode(prompt))
    assert count == sum(len(ids) for ids, keep in zip(turns[1:], kept[1:], strict=False) if keep), (
        "those that were kept, each behind the others"
    )


@pytest.mark.parametrize("deterministic", [False, True])
def test_off_where_answers_must_not_depend_on_other_requests(monkeypatch, deterministic):
    harness = make_harness()
    card = ModelCard("stub", VOCAB, 100, (EOS,))
    loaded = SimpleNamespace(model=harness.model, tokenizer=ChatLetters(), card=card)
    ready = assembly.Ready(loaded, harness.loop.limits, harness.loop._runner)
    monkeypatch.setattr(assembly, "_on_cpu", lambda _: ready)
    config = RuntimeConfig(device="cpu", deterministic=deterministic)
    parts = assembly.assemble(config, lambda *_: None, lambda _: None)
    assert (parts.service._admission.recall is None) == deterministic
    assert (parts.loop.scheduler._sharing._segment_cost is None) == deterministic
