"""Faults that other engines had, with their right values, through the whole runtime on the stub."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import pytest

from branchline.protocol import Abort

from .whole import TEXTS, VOCAB, A, B, LetterStream, Whole, ask, right, text_of

if TYPE_CHECKING:
    from collections.abc import Callable

PROMPT = [5 + i % 40 for i in range(40)]
ENDLESS = {"max_tokens": 30, "ignore_eos": True}


def after_call(owner: object, name: str, count: int, then: Callable[[], None], monkeypatch) -> None:
    """Let something happen inside the `count`-th call of a method, once it has done its work."""
    method, calls = getattr(owner, name), [0]

    def called(*args, **kwargs):
        result = method(*args, **kwargs)
        calls[0] += 1
        if calls[0] == count:
            then()
        return result

    monkeypatch.setattr(owner, name, called)


# ------------------------------------------------------------------------- lives (16, 19, 21, 23)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("count", range(1, 7))
@pytest.mark.parametrize("point", ["planned", "on the device", "detokenized", "told"])
def test_an_abort_at_any_point_of_a_step_ends_the_request_once(
    point: str, count: int, overlap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Whole(chunk_tokens=16, max_batch_tokens=32, overlap=overlap)
    owner, name = {
        "planned": (whole.loop.scheduler, "next_batch"),
        "on the device": (whole.harness.model, "forward"),
        "detokenized": (LetterStream, "push"),
        "told": (whole.service, "_post"),
    }[point]
    after_call(owner, name, count, lambda: whole.tell(Abort("r")), monkeypatch)
    whole.tell(ask("r", PROMPT, **ENDLESS))
    whole.tell(ask("neighbour", PROMPT[::-1], **ENDLESS))
    whole.run()
    assert [failure.code for failure in whole.failures()] == ["aborted"]
    assert whole.ids() == right(PROMPT, 30, ignore_eos=True)[: len(whole.ids())]
    assert len(whole.ids()) < 30
    assert whole.ids("neighbour") == right(PROMPT[::-1], 30, ignore_eos=True)
    whole.tell(ask("again", PROMPT, **ENDLESS))
    whole.run()
    assert whole.ids("again") == right(PROMPT, 30, ignore_eos=True)


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_a_second_request_of_a_live_id_is_refused(steps: int) -> None:
    whole = Whole()
    whole.tell(ask("r", PROMPT))
    for _ in range(steps):
        whole.harness.step()
    whole.tell(ask("r", PROMPT[:7]))
    whole.run()
    assert whole.ids() == right(PROMPT, 8)
    assert not whole.failures()
    (refusal,) = whole.failures(rid=None)
    assert "'r'" in refusal.message


@pytest.mark.parametrize("overlap", [False, True])
def test_a_request_ends_where_the_pool_does_and_nobody_waits_for_ever(overlap: bool) -> None:
    """64 pages and 100 tokens wanted after 40; others of every size wait beside it."""
    whole = Whole(pages=64, chunk_tokens=16, max_batch_tokens=32, overlap=overlap)
    whole.tell(ask("r", PROMPT, max_tokens=100, ignore_eos=True))
    whole.tell(ask("too long", PROMPT + PROMPT[:23]))
    whole.tell(ask("just fits", PROMPT + PROMPT[:22], max_tokens=100, ignore_eos=True))
    for i in range(10):
        whole.tell(ask(f"small {i}", [9, i], max_tokens=20, ignore_eos=True))
    whole.run()
    assert whole.ids() == right(PROMPT, 23, ignore_eos=True)
    assert whole.updates()[-1].finish.reason == "length"
    assert whole.ids("just fits") == right(PROMPT + PROMPT[:22], 1)
    for i in range(10):
        assert whole.ids(f"small {i}") == right([9, i], 20, ignore_eos=True)
    (refusal,) = whole.failures("too long")
    assert refusal.code == "invalid"
    assert "63 tokens: the context is 63" in refusal.message


# ------------------------------------------------------------------------- stop strings (27, 30)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("stream", [True, False])
def test_the_text_before_a_stop_is_all_that_is_told(overlap: bool, stream: bool) -> None:
    """Every part of a long text as the stop; the last ones are completed by the last token."""
    ids = right(PROMPT, 12, ignore_eos=True)
    text = text_of(ids)
    whole = Whole(overlap=overlap, max_running=64)
    stops = {text[i:j] for i in range(len(text)) for j in range(i + 1, min(i + 4, len(text)) + 1)}
    for stop in stops:
        want = {"max_tokens": 12, "ignore_eos": True, "stop": (stop, "never said")}
        whole.tell(ask(stop, PROMPT, stream=stream, **want))
    whole.run(5000)
    for stop in stops:
        before = text[: text.index(stop)]
        last = whole.updates(stop)[-1]
        assert whole.text(stop) == before
        assert (last.finish.reason, last.finish.matched) == ("stop", stop)
        kept = text_of(whole.ids(stop)[: last.finish.kept]) + last.finish.tail
        assert kept == before


def test_a_false_alarm_is_told_in_the_end() -> None:
    ids = right(PROMPT, 6, ignore_eos=True)
    stop = text_of(ids[2:]) + "!"
    whole = Whole()
    whole.tell(ask("r", PROMPT, max_tokens=6, ignore_eos=True, stop=(stop,)))
    whole.run()
    assert whole.text() == text_of(ids)
    assert [update.text for update in whole.updates()] == [
        *map(text_of, ([ids[0]], [ids[1]])),
        *[""] * 3,
        text_of(ids[2:]),
    ]


# ------------------------------------------------------------------------- refusals (33, 35, 37)


@pytest.mark.parametrize("min_tokens", [0, 6])
@pytest.mark.parametrize("token", [VOCAB, VOCAB + 5, -1])
def test_a_stop_id_outside_the_vocabulary_changes_nothing_for_a_neighbour(
    token: int, min_tokens: int
) -> None:
    whole = Whole()
    whole.tell(ask("neighbour", PROMPT, **ENDLESS))
    whole.harness.step()
    whole.tell(ask("r", PROMPT, stop_token_ids=(token,), min_tokens=min_tokens))
    whole.run()
    assert whole.ids("neighbour") == right(PROMPT, 30, ignore_eos=True)
    (refusal,) = whole.failures()
    assert (refusal.code, str(token) in refusal.message) == ("invalid", True)


@pytest.mark.parametrize("overlap", [False, True])
def test_a_stop_id_is_masked_until_min_tokens_and_ends_the_text_after(overlap: bool) -> None:
    free = right(PROMPT, 30, ignore_eos=True)
    token = free[0]
    assert token != 0
    whole = Whole(overlap=overlap)
    whole.tell(ask("at once", PROMPT, stop_token_ids=(token,)))
    whole.tell(ask("later", PROMPT, stop_token_ids=(token,), min_tokens=3))
    whole.run()
    assert (whole.ids("at once"), whole.text("at once")) == ([token], "")
    assert whole.updates("at once")[-1].finish.matched == token
    assert len(whole.ids("later")) >= 3
    assert token not in whole.ids("later")[:3]


@pytest.mark.parametrize("stream", [True, False])
def test_every_length_gets_an_answer(stream: bool) -> None:
    """Prompts of the context less one, all of it and one more; and more output than is left."""
    whole = Whole(pages=101)
    context = whole.loop.limits.max_context
    assert context == 100
    for length in (0, context - 1, context, context + 1):
        prompt = [1 + i % 50 for i in range(length)]
        whole.tell(ask(f"{length}", prompt, max_tokens=7, ignore_eos=True, stream=stream))
    whole.tell(ask("clamped", PROMPT, max_tokens=1000, ignore_eos=True, stream=stream))
    whole.run()
    assert len(whole.ids(f"{context - 1}")) == 1
    assert len(whole.ids("clamped")) == context - len(PROMPT)
    for rid, ids in ((f"{context - 1}", 1), ("clamped", 60)):
        assert whole.updates(rid)[-1].finish.reason == "length"
        assert whole.updates(rid)[-1].usage.completion_tokens == ids
    for rid, says in (("0", "empty"), ("100", "100 tokens"), ("101", "101 tokens")):
        (refusal,) = whole.failures(rid)
        assert refusal.code == "invalid"
        assert says in refusal.message
        assert not whole.updates(rid)


# ------------------------------------------------------------------------- n choices (39)


def choices(whole: Whole, rid: str) -> dict[int, tuple[list[int], str, object]]:
    ids, texts, ends = defaultdict(list), defaultdict(str), {}
    for update in whole.updates(rid):
        assert update.index not in ends, "nothing comes after an end"
        ids[update.index] += update.ids
        texts[update.index] += update.text
        if update.finish is not None:
            ends[update.index] = (update.finish.reason, update.finish.matched)
    return {index: (ids[index], texts[index], end) for index, end in ends.items()}


@pytest.mark.parametrize("overlap", [False, True])
def test_every_choice_has_its_own_draws_and_its_own_end(overlap: bool) -> None:
    """Hot draws, and a stop that each choice meets at another time, or not at all."""
    whole = Whole(overlap=overlap, pages=2000)
    want = {"n": 8, "temperature": 100.0, "max_tokens": 25, "seed": 3, "stop": tuple("ABC")}
    for rid, stream in (("streamed", True), ("whole", False), ("again", True)):
        whole.tell(ask(rid, PROMPT, stream=stream, **want))
    whole.run()
    found = choices(whole, "streamed")
    assert sorted(found) == list(range(8))
    assert len({tuple(ids) for ids, _, _ in found.values()}) == 8, "one seed, eight draws"
    assert {reason for _, _, (reason, _) in found.values()} == {"stop", "length"}
    for ids, text, (reason, matched) in found.values():
        assert len(ids) == 25 or reason == "stop"
        stopped = ids[:-1] if reason == "stop" else ids
        assert text == text_of(stopped)
        assert reason == "length" or matched in (0, TEXTS[ids[-1]])
    assert choices(whole, "whole") == choices(whole, "again") == found
    assert len(whole.updates("whole")) == 8


@pytest.mark.parametrize("stream", [True, False])
def test_every_choice_tells_the_prompts_logprobs(stream: bool) -> None:
    """Also those that find the whole prompt in the tree, and come back after a retraction."""
    whole = Whole(pages=90, chunk_tokens=16, max_batch_tokens=32)
    want = {"n": 4, "temperature": 100.0, "logprobs": True, "seed": 1, **ENDLESS}
    whole.tell(ask("r", PROMPT, stream=stream, logprob_start=3, top_logprobs=2, **want))
    whole.run()
    assert whole.loop.scheduler.retractions > 0
    for index in range(4):
        own = [update for update in whole.updates() if update.index == index]
        told = [entry for update in own for entry in update.prompt_logprobs]
        assert [entry.token for entry in told] == PROMPT[3:]
        ids = [token for update in own for token in update.ids]
        assert [entry.token for update in own for entry in update.logprobs] == ids
        assert len(ids) == 30


@pytest.mark.parametrize("steps", [0, 1, 4])
def test_a_client_that_goes_takes_all_its_choices_with_it(steps: int) -> None:
    whole = Whole()
    whole.tell(ask("r", PROMPT, n=4, temperature=100.0, **ENDLESS))
    whole.tell(ask("r", PROMPT, **ENDLESS), B)
    for _ in range(steps):
        whole.harness.step()
    whole.service.forget(A)
    whole.posted.clear()
    whole.run()
    assert not whole.updates(client=A)
    assert whole.updates(client=B)[-1].finish is not None
