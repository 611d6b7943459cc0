"""Frames: every message survives the journey, and nothing else gets through."""

from __future__ import annotations

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from branchline import protocol
from branchline.errors import ProtocolError
from branchline.protocol import (
    Abort,
    Bye,
    ChoiceScore,
    Failure,
    Finish,
    Flush,
    Flushed,
    Generate,
    Greeting,
    Hello,
    Info,
    ModelCard,
    Outputs,
    Ping,
    Pong,
    Score,
    Scored,
    TokenLogprob,
    Update,
    Usage,
    decode_client,
    decode_runtime,
    encode_client,
    encode_runtime,
    rid_of,
)
from branchline.sampling_params import SamplingParams

ids = st.integers(0, 2**31)
finite = st.floats(allow_nan=False)
tuples_of_ids = st.lists(ids).map(tuple)
piece = st.one_of(
    st.tuples(st.just("template"), st.text()),
    st.tuples(st.just("program"), st.text()),
    st.tuples(st.just("tokens"), tuples_of_ids),
)
prompts = st.lists(piece).map(tuple)
params = st.builds(
    SamplingParams,
    max_tokens=st.integers(0, 10**6),
    n=st.integers(1, 1024),
    stop=st.lists(st.text(min_size=1, max_size=9), max_size=4).map(tuple),
    stop_token_ids=tuples_of_ids,
    temperature=st.floats(0, 100),
    logit_bias=st.dictionaries(ids, st.floats(-100, 100)),
    seed=st.none() | st.integers(0, 2**63 - 1),
    logprob_start=st.none() | st.integers(0, 99),
)
top = st.lists(st.tuples(finite, ids)).map(tuple)
logprobs = st.lists(st.builds(TokenLogprob, st.none() | finite, ids, top)).map(tuple)
usage = st.builds(Usage, ids, ids, ids)
update = st.builds(
    Update,
    st.text(),
    ids,
    st.text(),
    tuples_of_ids,
    logprobs,
    logprobs,
    top,
    st.none() | st.builds(Finish, st.sampled_from(["stop", "length"]), st.text() | ids | st.none()),
    st.none() | usage,
)
choice = st.builds(ChoiceScore, tuples_of_ids, st.lists(finite).map(tuple), st.none())
salt = st.none() | st.text()
from_clients = st.one_of(
    st.builds(Hello, ids, st.text()),
    st.builds(Generate, st.text(), prompts, params, st.booleans(), salt),
    st.builds(Score, st.text(), prompts, st.lists(st.text()).map(tuple), st.booleans(), salt),
    st.builds(Abort, st.text()),
    st.builds(Flush, st.text()),
    st.builds(Info, st.text()),
    st.builds(Ping, ids),
    st.just(Bye()),
)
from_runtimes = st.one_of(
    st.builds(Greeting, ids, st.builds(ModelCard, st.text(), ids, ids, tuples_of_ids)),
    st.builds(Outputs, st.lists(update, max_size=3).map(tuple)),
    st.builds(Scored, st.text(), st.lists(choice, max_size=3).map(tuple), usage),
    st.builds(Flushed, st.text(), ids),
    st.just(Pong()),
    st.builds(Failure, st.none() | st.text(), st.just("invalid"), st.text()),
)


@given(from_clients)
def test_what_a_client_sends_arrives(message) -> None:
    frame = encode_client(message)
    assert decode_client(frame) == message
    assert rid_of(frame) == getattr(message, "rid", None)


@given(from_runtimes)
def test_what_a_runtime_sends_arrives(message) -> None:
    assert decode_runtime(encode_runtime(message)) == message


junk = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(0, 9), inner),
)


@given(st.binary() | junk.map(msgpack.packb))
def test_anything_else_is_a_protocol_error(frame: bytes) -> None:
    for decode in (decode_client, decode_runtime):
        with pytest.raises(ProtocolError):
            decode(frame)
    rid = rid_of(frame)
    assert rid is None or isinstance(rid, str)


def test_a_map_for_a_key_is_a_protocol_error() -> None:
    frame = b"\x81\x80\x01"
    with pytest.raises(ProtocolError, match="not msgpack"):
        decode_client(frame)
    assert rid_of(frame) is None


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"type": "generat"}, "generat"),
        ({"rid": 3}, "rid"),
        ({"prompt": [["program"]]}, "prompt"),
        ({"prompt": [["unknown", "x"]]}, "prompt"),
        ({"prompt": [["tokens", [1.5]]]}, "prompt"),
        ({"params": {"temperature": -1}}, "temperature=-1"),
        ({"params": {"max_tokens": 1, "min_tokens": 2}}, "min_tokens=2"),
        ({"params": {"top_q": 1}}, "top_q"),
        ({"params": {"stop_token_ids": [None]}}, "stop_token_ids"),
        ({"grammar": "x"}, "grammar"),
    ],
)
def test_the_error_names_the_field(change: dict, says: str) -> None:
    raw = {"type": "generate", "rid": "r", "prompt": [["program", "x"]], "params": {}} | change
    with pytest.raises(ProtocolError, match=says):
        decode_client(msgpack.packb(raw))


@pytest.mark.parametrize(
    "message",
    [
        Generate("r", (("program", "half a pair: \ud83d"),)),
        Generate("r", (("tokens", (2**70,)),)),
        Score("r", (("program", "x"),), ("\ud83d",)),
    ],
)
def test_what_cannot_travel_is_refused_by_the_sender(message) -> None:
    with pytest.raises(ProtocolError, match=f"a {message.type} message that cannot be sent"):
        encode_client(message)


def test_only_what_a_client_sends_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "MAX_MESSAGE_BYTES", 100)
    long = "x" * 100
    with pytest.raises(ProtocolError, match="at most 100"):
        encode_client(Abort(long))
    with pytest.raises(ProtocolError, match="at most 100"):
        decode_client(msgpack.packb({"type": "abort", "rid": long}))
    assert decode_runtime(encode_runtime(Failure(long, "invalid", ""))).rid == long


def test_a_later_hello_is_understood_and_nothing_else_may_hold_more() -> None:
    assert decode_client(msgpack.packb({"type": "hello", "version": 9, "new": 1})) == Hello(9)
    with pytest.raises(ProtocolError, match="new"):
        decode_client(msgpack.packb({"type": "abort", "rid": "r", "new": 1}))
