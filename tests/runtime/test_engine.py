"""The whole runtime without a socket: the real model, loop, tokenizer and service."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from branchline import eventloop
from branchline.errors import InvalidRequest, RuntimeFailed, RuntimeUnavailable
from branchline.protocol import Generate, Score
from branchline.runtime.engine import Engine
from branchline.sampling_params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Iterator

FRANCE = "The capital of France is"
GREEDY = SamplingParams(max_tokens=8, temperature=0)


@pytest.fixture
def engine(smollm2, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    monkeypatch.setattr("branchline.runtime.models.load.load", lambda _, **_settings: smollm2)
    with Engine("smollm2", kv_memory="256MiB", check_invariants=True) as engine:
        yield engine


def test_generate_text(engine: Engine) -> None:
    (completion,) = engine.generate_text(FRANCE, GREEDY)
    assert "Paris" in completion.text
    assert len(completion.ids) == completion.usage.completion_tokens <= 8
    again, other = engine.generate_text([FRANCE, "1, 2, 3,"], GREEDY)
    assert again.ids == completion.ids
    assert again.usage.cached_tokens > 0
    assert "4" in other.text


def test_one_bad_prompt_does_not_disturb_the_others(engine: Engine) -> None:
    """Faults 33, 35 and 37 against the real tokenizer and context."""
    bad = [
        (("program", ""), {}, "empty"),
        (("program", "x " * 9000), {}, "the context is"),
        (("tokens", (10**6,)), {}, "1000000"),
        (("program", "\ud83d"), {}, ""),
        (("program", "x"), {"stop_token_ids": (10**6,)}, "stop_token_ids"),
    ]

    async def last(piece, params) -> str:
        sampling = SamplingParams(max_tokens=4, temperature=0, **params)
        request = Generate(engine.new_rid(), (piece,), sampling)
        return "".join([update.text async for update in engine.generate(request)])

    async def all_of_them() -> list[str | BaseException]:
        work = [last(piece, params) for piece, params, _ in bad]
        work.append(last(("program", FRANCE), {}))
        return await asyncio.gather(*work, return_exceptions=True)

    *errors, good = eventloop.run(all_of_them())
    for error, (_, _, says) in zip(errors, bad, strict=True):
        assert isinstance(error, InvalidRequest)
        assert says in str(error)
    assert isinstance(good, str)
    assert good


def test_score_prefers_what_is_true(engine: Engine) -> None:
    choices = (" Paris", " Berlin", " a")
    request = Score("s", (("program", FRANCE),), choices, unconditional=True)
    cold, warm = (eventloop.run(engine.score(request)) for _ in range(2))
    paris, berlin, _ = (sum(score.logprobs) for score in cold.choices)
    assert paris > berlin
    for one, two in zip(cold.choices, warm.choices, strict=True):
        assert one.ids == two.ids
        assert two.logprobs == pytest.approx(one.logprobs, abs=5e-4)
        assert one.unconditional is not None
        assert len(one.unconditional) == len(one.ids)


def test_info_counts_and_flush_frees(engine: Engine) -> None:
    engine.generate_text(FRANCE, GREEDY)
    info = eventloop.run(engine.info())
    assert (info.running, info.waiting, info.pages_private, info.pages_protected) == (0, 0, 0, 0)
    assert info.requests_finished == 1
    assert eventloop.run(engine.flush()) == info.pages_cached > 0
    assert eventloop.run(engine.info()).pages_cached == 0


def test_an_abandoned_generation_leaves_nothing_behind(engine: Engine) -> None:
    async def first() -> None:
        params = SamplingParams(max_tokens=500, ignore_eos=True)
        updates = engine.generate(Generate("r", (("program", FRANCE),), params))
        await anext(updates)
        await updates.aclose()

    eventloop.run(first())
    info = eventloop.run(engine.info())
    assert (info.running, info.pages_private) == (0, 0)
    assert info.requests_aborted == 1


def test_a_closed_engine_says_so(engine: Engine) -> None:
    engine.close()
    with pytest.raises(RuntimeUnavailable, match="closed"):
        engine.generate_text("x")


def test_a_bug_in_the_loop_is_an_error_not_a_hang(engine: Engine) -> None:
    def broken() -> None:
        raise ZeroDivisionError("as asked")

    engine._loop.flush(lambda _: broken())
    with pytest.raises((RuntimeFailed, RuntimeUnavailable)):
        engine.generate_text("x", SamplingParams(max_tokens=4000, ignore_eos=True))
    with pytest.raises(RuntimeUnavailable, match="as asked"):
        engine.generate_text("x")


def test_an_engine_has_no_address() -> None:
    with pytest.raises(InvalidRequest, match="no address"):
        Engine(address="ipc:///x")
