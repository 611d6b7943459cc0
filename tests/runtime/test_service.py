"""The service against a scripted loop that is stepped by hand: what comes out, and to whom."""

from __future__ import annotations

import pytest

from branchline.protocol import (
    PROTOCOL_VERSION,
    Abort,
    Bye,
    Failure,
    Flush,
    Flushed,
    Generate,
    Greeting,
    Hello,
    Info,
    InfoReply,
    Outputs,
    Ping,
    Pong,
    Score,
    Scored,
    encode_client,
)
from branchline.runtime.config import RuntimeConfig
from branchline.sampling_params import SamplingParams
from branchline.seeds import derive_seed
from tests.fake_runtime import CONTEXT, EOS, VOCAB, answer, assemble, logprob

A, B = b"client a", b"client b"


class Desk:
    """A service, its loop and what it posted."""

    def __init__(self, **settings: object) -> None:
        self.posted: list[tuple[bytes, object]] = []
        config = RuntimeConfig(**settings)  # type: ignore[arg-type]
        parts = assemble(config, lambda *post: self.posted.append(post), lambda _: None)
        self.service, self.loop = parts.service, parts.loop
        for client in (A, B):
            self.service.handle(client, Hello(PROTOCOL_VERSION))
        self.posted.clear()

    def tell(self, message, client: bytes = A) -> None:
        self.service.handle(client, message)

    def take(self, client: bytes = A) -> list:
        """What was posted to a client since the last look."""
        taken = [message for to, message in self.posted if to == client]
        self.posted = [post for post in self.posted if post[0] != client]
        return taken

    def run(self, client: bytes = A, steps: int = 200) -> list:
        for _ in range(steps):
            self.loop.step()
            if not self.loop.live:
                break
        return self.take(client)


def ask(rid: str = "r", text: str = "hello", *, stream: bool = True, **params: object) -> Generate:
    sampling = SamplingParams(**{"max_tokens": 3, **params})  # type: ignore[arg-type]
    return Generate(rid, (("program", text),), sampling, stream=stream)


def updates(messages: list, rid: str = "r") -> list:
    return [u for m in messages if isinstance(m, Outputs) for u in m.updates if u.rid == rid]


def refusal(desk: Desk, message) -> Failure:
    """The failure that a message meets at once; nothing may reach the loop."""
    desk.tell(message)
    (failure,) = desk.take()
    assert isinstance(failure, Failure)
    desk.loop.receive()
    assert not desk.loop.live
    return failure


# -------------------------------------------------------------------------------- the connection


def test_hello_is_greeted_with_the_model() -> None:
    desk = Desk(heartbeat=3.0)
    desk.tell(Hello(PROTOCOL_VERSION))
    (greeting,) = desk.take()
    assert isinstance(greeting, Greeting)
    assert (greeting.model.name, greeting.heartbeat) == ("toy", 3.0)


def test_another_version_is_refused_by_both_numbers() -> None:
    desk = Desk()
    desk.tell(Hello(PROTOCOL_VERSION + 41), client=b"new")
    (failure,) = desk.take(b"new")
    assert failure.code == "protocol"
    assert f"version {PROTOCOL_VERSION + 41} " in failure.message
    assert f"version {PROTOCOL_VERSION}:" in failure.message
    desk.tell(ask(), client=b"new")
    assert desk.take(b"new") == [Failure(None, "protocol", "unknown connection: say hello first")]


def test_ping_flush_and_info_are_answered() -> None:
    desk = Desk()
    for message in (Ping(3), Flush("f"), Info("i")):
        desk.tell(message)
    desk.loop.step()
    pong, flushed, info = desk.take()
    assert (pong, flushed) == (Pong(), Flushed("f", 7))
    assert isinstance(info, InfoReply)
    assert (info.rid, info.info.model) == ("i", "toy")


# -------------------------------------------------------------------------------- generate


def test_a_stream_has_one_message_a_step_and_says_all() -> None:
    desk = Desk()
    desk.tell(ask("r"))
    desk.tell(ask("other", "hi", max_tokens=5))
    messages = desk.run()
    assert len(messages) == 5, "one message for each step, for both requests together"
    said = updates(messages)
    assert [u.finish is not None for u in said] == [False, False, True]
    assert len(updates(messages, "other")) == 5


def test_each_client_gets_its_own() -> None:
    desk = Desk()
    desk.tell(ask("r", stream=False), client=A)
    desk.tell(ask("r", "hi", stream=False), client=B)
    firsts = [updates(desk.run(client))[0].ids[0] for client in (A, B)]
    assert firsts == [ord("a") + len("hello"), ord("a") + len("hi")]


@pytest.mark.parametrize("stream", [True, False])
def test_n_choices_end_at_different_times(stream: bool) -> None:
    """Fault 39: none is dropped, each has its own end, the request is alive until the last."""
    desk = Desk()
    desk.tell(ask(n=4, max_tokens=6, seed=11, stream=stream))
    messages = desk.run()
    ends = {u.index: u for u in updates(messages) if u.finish}
    assert sorted(ends) == [0, 1, 2, 3]
    assert [ends[i].usage.completion_tokens for i in range(4)] == [6, 5, 4, 3]
    assert [ends[i].finish.seed for i in range(4)] == [derive_seed(11, i) for i in range(4)]
    for index in range(4):
        ids = [t for u in updates(messages) if u.index == index for t in u.ids]
        assert len(ids) == 6 - index
    desk.tell(ask())
    assert len(updates(desk.run())) == 3, "the rid is free again"


def test_the_choices_of_one_request_start_together() -> None:
    desk = Desk()
    desk.tell(ask(n=5))
    desk.loop.receive()
    assert [request.index for request in desk.loop.live] == [0, 1, 2, 3, 4]


def test_seeds() -> None:
    desk = Desk()
    desk.tell(ask("a", seed=5))
    desk.tell(ask("b"))
    desk.tell(ask("c"))
    messages = desk.run()
    seeds = [updates(messages, rid)[-1].finish.seed for rid in "abc"]
    assert seeds[0] == 5
    assert len(set(seeds)) == 3
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_stop_ids_are_the_models_and_the_users() -> None:
    desk = Desk()
    desk.tell(ask("a", stop_token_ids=(7,)))
    desk.tell(ask("b", stop_token_ids=(7,), ignore_eos=True))
    desk.loop.receive()
    assert [request.stop_ids for request in desk.loop.live] == [{7, EOS}, {7}]


def test_the_salt_and_the_pieces_reach_the_request() -> None:
    desk = Desk()
    prompt = (("template", "a"), ("program", "b"), ("tokens", (1, 2)), ("program", "c"))
    desk.tell(Generate("r", prompt, cache_salt="s"))
    desk.loop.receive()
    (request,) = desk.loop.live
    assert request.salt == "s"
    assert request.prompt == [97, 98, 1, 2, 99]


# -------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("field", "value"), [("priority", 101), ("priority", -101), ("timeout", 0), ("timeout", -1.5)]
)
@pytest.mark.parametrize("kind", [Generate, Score])
def test_a_turn_that_cannot_be_is_refused_by_name(kind: type, field: str, value: float) -> None:
    more = {"choices": ("a",)} if kind is Score else {}
    failure = refusal(Desk(), kind(rid="r", prompt=(("program", "x"),), **more, **{field: value}))
    assert (failure.rid, failure.code) == ("r", "invalid")
    assert f"{field}={value}" in failure.message


@pytest.mark.parametrize("min_tokens", [0, 2])
@pytest.mark.parametrize("token", [VOCAB, VOCAB + 5, -1])
def test_ids_outside_the_vocabulary_are_refused(token: int, min_tokens: int) -> None:
    """Fault 33, alone and beside a neighbour that goes on."""
    assert (
        str(token) in refusal(Desk(), ask(stop_token_ids=(token,), min_tokens=min_tokens)).message
    )
    assert str(token) in refusal(Desk(), ask(logit_bias={token: 1.0})).message
    desk = Desk()
    desk.tell(ask("neighbour"))
    desk.loop.step()
    desk.tell(ask("bad", stop_token_ids=(token,), min_tokens=min_tokens))
    messages = desk.run()
    assert len(updates(messages, "neighbour")) == 3
    assert [m.rid for m in messages if isinstance(m, Failure)] == ["bad"]


@pytest.mark.parametrize("prompt", [(), (("program", ""),), (("tokens", ()),)])
def test_an_empty_prompt_is_refused(prompt: tuple) -> None:
    """Fault 35."""
    assert "empty" in refusal(Desk(), Generate("r", prompt)).message
    assert "empty" in refusal(Desk(), Score("r", prompt, ("a",))).message


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("length", [CONTEXT, CONTEXT + 1])
def test_a_prompt_that_fills_the_context_is_refused(length: int, stream: bool) -> None:
    """Fault 37."""
    message = refusal(Desk(), ask(text="x" * length, stream=stream)).message
    assert f"{length} tokens" in message
    assert f"the context is {CONTEXT}" in message


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("length", "want", "get"), [(CONTEXT - 1, 9, 1), (CONTEXT - 5, 9, 5)])
def test_max_tokens_is_cut_to_the_room_that_is_left(
    length: int, want: int, get: int, stream: bool
) -> None:
    desk = Desk()
    desk.tell(ask(text="x" * length, max_tokens=want, min_tokens=want, stream=stream))
    last = updates(desk.run())[-1]
    assert (last.finish.reason, last.usage.completion_tokens) == ("length", get)


def test_a_text_that_no_context_could_hold_is_not_tokenized() -> None:
    long = "💥" * (CONTEXT * 256 + 1)  # tokenizing it would raise
    assert f"{len(long)} characters" in refusal(Desk(), ask(text=long)).message
    prompt = (("program", "x"),)
    assert f"{len(long)} characters" in refusal(Desk(), Score("r", prompt, (long,))).message
    ids = (("program", "💥"), ("tokens", (1,) * CONTEXT))
    assert f"the prompt has {CONTEXT} tokens" in refusal(Desk(), Generate("r", ids)).message


def test_logprob_start_lies_in_the_prompt() -> None:
    desk = Desk()
    assert "logprob_start=5" in refusal(desk, ask(text="hello", logprob_start=5)).message
    desk.tell(ask(text="hello", logprob_start=4))
    assert len(updates(desk.run())[-1].prompt_logprobs) == 1


def test_a_bug_in_the_tokenizer_ends_one_request() -> None:
    desk = Desk()
    desk.tell(ask("good"))
    desk.tell(ask("bad", text="💥"))
    messages = desk.run()
    (failure,) = [m for m in messages if isinstance(m, Failure)]
    assert (failure.rid, failure.code) == ("bad", "internal")
    assert len(updates(messages, "good")) == 3


def test_one_more_than_may_wait_is_refused() -> None:
    desk = Desk(max_running=2, max_waiting=3)
    desk.tell(ask("a", n=5))
    desk.tell(ask("b"))
    (failure,) = desk.take()
    assert (failure.rid, failure.code) == ("b", "overloaded")
    assert "at most 5" in failure.message
    assert {u.index for u in updates(desk.run(), "a")} == {0, 1, 2, 3, 4}
    desk.tell(ask("b", n=5))
    assert len({u.index for u in updates(desk.run(), "b")}) == 5, "those that ended make room"


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_a_duplicate_rid_is_refused_and_the_first_undisturbed(steps: int) -> None:
    """Fault 21: at once and midway."""
    desk = Desk()
    desk.tell(ask())
    for _ in range(steps):
        desk.loop.step()
    said = updates(desk.take())
    desk.tell(ask(text="second"))
    (failure,) = desk.take()
    assert (failure.rid, failure.code) == (None, "invalid"), "one with the rid would end the first"
    assert "rid='r'" in failure.message
    said += updates(desk.run())
    assert len(said) == 3
    assert said[-1].finish is not None


def test_a_bad_frame_with_a_live_rid_does_not_end_its_request() -> None:
    desk = Desk()
    desk.tell(ask())
    desk.service.refuse_frame(A, encode_client(Abort("r")), "bad")
    desk.service.refuse_frame(A, encode_client(Abort("other")), "bad")
    assert [failure.rid for failure in desk.take()] == [None, "other"]
    assert len(updates(desk.run())) == 3


# -------------------------------------------------------------------------------- score


def brute_force(prompt: str, choice: str) -> list[tuple[int, float]]:
    """(token, logprob) of the choice, from what the toy tokenizer and loop are documented to do."""
    ids = [256 if c == "\0" else ord(c) for c in (prompt + choice).replace("th", "\0")]
    alone = [256 if c == "\0" else ord(c) for c in prompt.replace("th", "\0")]
    start = len(alone) - (ids[len(alone) - 1] != alone[-1])
    return [(token, logprob(at, token)) for at, token in enumerate(ids)][start:]


@pytest.mark.parametrize("unconditional", [True, False])
def test_score_gathers_the_choices_in_order(unconditional: bool) -> None:
    """Fault 43: exactly a choice's tokens, also where its first merges with the prompt's last."""
    choices = ("yes", "hat", "y", "no", "no")
    desk = Desk()
    desk.tell(Score("s", (("program", "is it"),), choices, unconditional=unconditional))
    (scored,) = desk.run()
    assert isinstance(scored, Scored)
    assert scored.rid == "s"
    for choice, score in zip(choices, scored.choices, strict=True):
        right = brute_force("is it", choice)
        assert list(zip(score.ids, score.logprobs, strict=True)) == right
        alone = [None, *(logprob(at, token) for at, (token, _) in enumerate(right) if at)]
        assert score.unconditional == (tuple(alone) if unconditional else None)
    assert scored.choices[1].ids[0] == 256, "`t` and `h` became one token"
    assert scored.usage.completion_tokens == 0
    assert scored.usage.prompt_tokens >= sum(len("is it" + choice) - 1 for choice in choices)


def test_a_choice_without_tokens_is_refused_by_name() -> None:
    prompt = (("program", "x"),)
    assert "''" in refusal(Desk(), Score("s", prompt, ("a", ""))).message
    assert "choices" in refusal(Desk(), Score("s", prompt, ())).message
    assert "1025" in refusal(Desk(), Score("s", prompt, ("a",) * 1025)).message


def test_a_choice_that_fills_the_context_is_refused() -> None:
    prompt = (("program", "x" * (CONTEXT - 2)),)
    desk = Desk()
    failure = refusal(desk, Score("s", prompt, ("a", "bc")))
    assert "'bc'" in failure.message
    desk.tell(Score("s", prompt, ("a",)))
    assert isinstance(desk.run()[0], Scored)


def test_aborting_a_score_is_one_failure() -> None:
    desk = Desk()
    desk.tell(Score("s", (("program", "x"),), ("a", "b", "c"), unconditional=True))
    desk.tell(Abort("s"))
    desk.loop.step()
    assert desk.take() == [Failure("s", "aborted", "aborted")]


# -------------------------------------------------------------------------------- the end


@pytest.mark.parametrize("n", [1, 4])
@pytest.mark.parametrize("steps", range(8))
def test_abort_at_each_moment(steps: int, n: int) -> None:
    """Faults 16 and 19: one terminal answer, then silence; the rid can be used again."""
    desk = Desk()
    desk.tell(ask(max_tokens=6, n=n))
    for _ in range(steps):
        desk.loop.step()
    desk.tell(Abort("r"))
    desk.tell(Abort("r"))
    messages = desk.run()
    failures = [m for m in messages if isinstance(m, Failure)]
    finishes = [u for u in updates(messages) if u.finish]
    assert len(failures) == (1 if steps < 6 else 0)
    assert steps < 6 or len(finishes) == n
    assert not desk.loop.live
    desk.tell(ask(max_tokens=1))
    (update,) = updates(desk.run())
    assert update.finish is not None


def test_when_one_choice_fails_the_others_end_too() -> None:
    desk = Desk()
    desk.tell(ask(n=3, max_tokens=9))
    desk.tell(ask("other", max_tokens=9))
    desk.loop.step()
    victim = desk.loop.live[1]
    desk.loop.live.remove(victim)
    desk.service.on_events([(victim, Failure("r", "internal", "too big"))])
    messages = desk.run()
    assert [m for m in messages if isinstance(m, Failure)] == [Failure("r", "internal", "too big")]
    at = messages.index(Failure("r", "internal", "too big"))
    assert not updates(messages[at:]), "nothing is said of a request that has failed"
    assert len(updates(messages, "other")) == 9


@pytest.mark.parametrize("how", ["bye", "forget"])
def test_a_client_that_leaves_has_its_requests_aborted(how: str) -> None:
    desk = Desk()
    desk.tell(ask("r", n=4, max_tokens=50))
    desk.tell(Score("s", (("program", "x"),), ("a", "b")))
    desk.tell(ask("r"), client=B)
    if how == "bye":
        desk.tell(Bye())
    else:
        desk.service.forget(A)
    desk.loop.step()
    assert [request.client for request in desk.loop.live] == [B]
    assert desk.take(A) == []
    assert len(updates(desk.run(B))) == 3


def test_an_overloaded_client_hears_of_each_request_and_goes_on() -> None:
    desk = Desk()
    desk.tell(ask("a", max_tokens=50))
    desk.tell(ask("b", max_tokens=50))
    assert desk.service.overload(A, "too slow") == 2
    assert desk.run() == [Failure(rid, "overloaded", "too slow") for rid in ("a", "b")]
    desk.tell(ask("a"))
    assert len(updates(desk.run(), "a")) == 3


def test_updates_are_what_the_loop_said() -> None:
    desk = Desk()
    desk.tell(ask())
    desk.loop.receive()
    (request,) = desk.loop.live
    right = [answer(request, position) for position in range(3)]
    assert [t for u in updates(desk.run()) for t in u.ids] == right
