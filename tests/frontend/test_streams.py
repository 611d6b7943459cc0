from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future

import pytest

import branchline as bl
from branchline.errors import RuntimeUnavailable
from branchline.feed import Feed

from .fake_backend import CHATML, FakeBackend


def stream(body, backend=None, **settings):
    backend = backend or FakeBackend("abc")
    return bl.function(body).run(backend=backend, stream=True, **settings)


def body(s):
    s += "Q:"
    s += bl.gen("x", stop="c")
    s += "." + bl.gen("y", top_logprobs_num=1)
    return "done"


async def collect(chunks):
    return [chunk async for chunk in chunks]


def test_the_whole_text_comes_prompt_included(soon) -> None:
    state = stream(body)
    assert soon(lambda: [*state.text_iter()]) == ["Q:", "a", "b", ".", "a", "b", "c"]
    assert state.ret_value == "done"
    assert [*state.text_iter()] == ["Q:", "a", "b", ".", "a", "b", "c"]  # and again
    assert state.text() == "Q:ab.abc"


def test_a_variable_comes_as_it_is_written(soon) -> None:
    state = stream(body)
    assert soon(lambda: [*state.text_iter("y")]) == ["a", "b", "c"]
    assert soon(lambda: [*state.text_iter("x")]) == ["a", "b"]


def test_streams_show_text_before_it_is_finished(soon) -> None:
    backend = FakeBackend("abc", gated=True)
    state = stream(body, backend)
    chunks = state.text_iter()
    assert soon(lambda: next(chunks)) == "Q:"
    backend.open_gate()
    assert soon(lambda: "".join(chunks)) == "ab.abc"


def test_readers_on_an_event_loop() -> None:
    async def main():
        state = stream(body)
        return await asyncio.wait_for(
            asyncio.gather(
                collect(state.text_async_iter()),
                collect(state.text_async_iter("x")),
                collect(state.text_async_iter("y", return_meta_data=True)),
            ),
            5,
        )

    text, x, y = asyncio.run(main())
    assert "".join(text) == "Q:ab.abc"
    assert x == ["a", "b"]
    assert [chunk for chunk, _ in y] == ["a", "b", "c", ""]
    assert [meta["output_token_logprobs"] for _, meta in y[:3]] == [
        [[-0.5, ord(letter), None]] for letter in "abc"
    ]
    assert y[3][1]["completion_tokens"] == 3
    assert y[3][1]["finish_reason"] == {"type": "stop", "matched": None}


def test_log_probabilities_of_tokens_without_text_come_with_the_next_pair() -> None:
    def cut(s):
        s += bl.gen("x", stop="c", return_logprob=True)

    async def main():
        state = stream(cut)
        return await asyncio.wait_for(collect(state.text_async_iter("x", return_meta_data=True)), 5)

    pairs = asyncio.run(main())
    assert [text for text, _ in pairs] == ["a", "b", ""]
    assert pairs[2][1]["output_token_logprobs"] == [[-0.5, ord("c"), None]]


def test_a_reader_that_is_cancelled_does_not_cancel_the_program(soon) -> None:
    backend = FakeBackend("abc", gated=True)
    state = stream(body, backend)

    async def main():
        for name in (None, "x", "never"):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(collect(state.text_async_iter(name)), 0.05)

    asyncio.run(main())
    backend.open_gate()
    assert soon(state.text) == "Q:ab.abc"


def test_without_streaming_there_is_one_item() -> None:
    state = bl.function(body).run(backend=FakeBackend("abc"))
    assert [*state.text_iter()] == ["Q:ab.abc"]
    assert [*state.text_iter("x")] == ["ab"]

    async def main():
        text = await collect(state.text_async_iter())
        return text, await collect(state.text_async_iter("y", return_meta_data=True))

    text, pairs = asyncio.run(main())
    assert text == ["Q:ab.abc"]
    assert pairs == [("abc", state.get_meta_info("y"))]


def test_the_streaming_flag_reaches_the_backend() -> None:
    for flag in (True, False):
        backend = FakeBackend()
        bl.function(body).run(backend=backend, stream=flag).sync()
        assert {request.stream for request in backend.requests} == {flag}


def test_a_variable_is_waited_for_until_the_body_names_it(soon) -> None:
    go = threading.Event()

    def slow(s):
        go.wait(5)
        s += bl.gen("x")
        with s.var_scope("v"):
            s += "inside"

    state = stream(slow)
    chunks = state.text_iter("v")
    go.set()
    assert soon(lambda: [*chunks]) == ["inside"]
    assert soon(lambda: state["x"]) == "abc"
    with pytest.raises(KeyError, match="nope"):
        soon(lambda: [*state.text_iter("nope")])
    with pytest.raises(KeyError, match="nope"):
        soon(lambda: state["nope"])
    with pytest.raises(KeyError, match="nope"):
        asyncio.run(asyncio.wait_for(collect(state.text_async_iter("nope")), 5))


def test_reading_from_outside_waits_for_the_body(soon) -> None:
    go = threading.Event()

    def slow(s):
        s += "a"
        assert s.ret_value is None
        assert s.text() == "a"  # inside, reading does not wait for the body itself
        go.wait(5)
        s += "b"
        return 7

    state = stream(slow)
    threading.Timer(0.05, go.set).start()
    assert soon(state.text) == "ab"
    assert state.ret_value == 7


def test_a_body_may_read_its_own_stream(soon) -> None:
    def reading(s):
        s += "p" + bl.gen("x")
        assert "".join(s.text_iter()) == "pabc"
        forks = s.fork(2)
        forks += "q" + bl.gen("y")
        s["left"] = "".join(forks[0].text_iter())
        s["bare"] = "".join(s.fork(1)[0].text_iter())

    state = stream(reading)
    assert soon(lambda: state["left"]) == "pabcqabc"
    assert soon(lambda: state["bare"]) == "pabc"


def test_roles_stream_too(soon) -> None:
    def chat(s):
        s += bl.user("Hi")
        s += bl.assistant(bl.gen("x"))

    state = stream(chat, FakeBackend("ok", template=CHATML))
    assert soon(lambda: "".join(state.text_iter())) == soon(state.text)
    assert len(state.messages()) == 3


def test_a_failure_ends_the_streams_after_what_had_come(soon) -> None:
    def failing(s):
        s += "Q:" + bl.gen("x")
        s += "!" + bl.gen("y")

    backend = FakeBackend(lambda text: RuntimeUnavailable("lost") if "!" in text else "abc")
    state = stream(failing, backend)
    seen = []

    def read(name):
        for chunk in state.text_iter(name):
            seen.append(chunk)  # noqa: PERF402 - what came before the error is kept

    with pytest.raises(bl.ProgramError, match="lost"):
        soon(lambda: read(None))
    assert "".join(seen) == "Q:abc!"
    with pytest.raises(bl.ProgramError, match="lost"):
        soon(lambda: read("y"))
    for name in (None, "y"):
        with pytest.raises(bl.ProgramError, match="lost"):
            asyncio.run(asyncio.wait_for(collect(state.text_async_iter(name)), 5))


def test_an_exception_in_the_body_ends_the_streams(soon) -> None:
    def raising(s):
        with s.user():
            s += "half"
            raise ZeroDivisionError("mine")

    state = stream(raising)
    with pytest.raises(bl.ProgramError, match="mine") as caught:
        soon(lambda: [*state.text_iter()])
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert caught.value.site.file == __file__
    assert soon(state.error) is caught.value
    for read in (lambda: state["x"], lambda: [*state.text_iter("x")], lambda: state.ret_value):
        with pytest.raises(bl.ProgramError, match="mine"):
            soon(read)
    assert repr(state) == "ProgramState(USER:half\n)"


def test_no_wake_up_is_lost() -> None:
    # Readers and writer race at every item; a lost wake-up would leave a reader waiting.
    def race() -> None:
        feed: Feed[int] = Feed()
        end: Future[None] = Future()
        seen: list[list[int]] = [[], []]
        readers = [
            threading.Thread(target=lambda mine=mine: mine.extend(feed.follow(end)), daemon=True)
            for mine in seen
        ]
        for reader in readers:
            reader.start()
        for item in range(5):
            feed.put(item)
        end.set_result(None)
        for reader in readers:
            reader.join(5)
        assert seen == [[0, 1, 2, 3, 4]] * 2

    for _ in range(200):
        race()
