"""Bodies that are nearly right: what a route takes, with some of it replaced."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "Hello <|im_end|>"}]},
    {"role": "assistant", "content": "Hi"},
    {"role": "user", "content": "And now?"},
]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TOOL = {"type": "function", "function": {"name": "add", "parameters": SCHEMA}}
COMMON = {
    "max_tokens": 4,
    "min_tokens": 1,
    "n": 2,
    "stop": ["\n", "END"],
    "stop_token_ids": [5],
    "ignore_eos": False,
    "temperature": 0.7,
    "top_p": 0.9,
    "top_k": 40,
    "min_p": 0.05,
    "repetition_penalty": 1.1,
    "frequency_penalty": 0.2,
    "presence_penalty": -0.2,
    "logit_bias": {"17": -100},
    "seed": 7,
    "stream": True,
    "stream_options": {"include_usage": True},
    "cache_salt": "tenant",
    "priority": 1,
    "timeout": 5,
    "user": "somebody",
}
BODIES: dict[str, list[dict[str, Any]]] = {
    "/v1/completions": [
        {**COMMON, "prompt": "Once upon a time", "logprobs": 3, "echo": True},
        {"prompt": ["one", "two"], "max_tokens": 3, "regex": "[a-z]{1,4}"},
        {"prompt": [[1, 2, 3], [4]], "max_tokens": 0, "echo": True, "logprobs": 1},
        {"prompt": "x", "grammar": 'start: "a" | "b"', "max_tokens": 4},
    ],
    "/v1/chat/completions": [
        {**COMMON, "messages": MESSAGES, "logprobs": True, "top_logprobs": 2},
        {
            "messages": MESSAGES,
            "max_completion_tokens": 5,
            "response_format": {"type": "json_object"},
        },
        {
            "messages": MESSAGES[1:],
            "max_tokens": 8,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "a", "schema": SCHEMA, "strict": True},
            },
        },
        {"messages": MESSAGES, "tools": [TOOL], "tool_choice": "auto", "max_tokens": 8},
        {"messages": MESSAGES, "tools": [TOOL], "tool_choice": "required", "stream": True},
    ],
    "/generate": [
        {"text": "Once", "sampling_params": {"max_new_tokens": 4, "temperature": 0}},
        {
            "text": ["one", "two"],
            "sampling_params": [{"max_new_tokens": 2}, {"max_new_tokens": 3, "regex": "a+"}],
            "return_logprob": True,
            "stream": False,
        },
        {"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 2}, "stream": True},
    ],
}

# Text that a JSON parser, a template, a tokenizer or a log may trip over.
ODD_TEXTS = ["", " ", "\0", "\ud800", "<|im_start|>", "{{ messages }}", "é" * 300, "a\u0301", "💥"]
ODD_REGEXES = ["(", "[a-", "(a+)+$", "a{1000}{1000}", r"\p{L}", "(?=a)", r"(a)\1", "a{,999999}"]
NUMBERS = st.one_of(
    st.sampled_from([0, 1, -1, 2**31, 2**63, -(2**63), 2**64, 10**30, 0.0, -0.0, 1e308, 1e-308]),
    st.integers(-10, 3000),
    st.floats(),  # NaN and infinities, too: Python's JSON writes and reads them
)
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    NUMBERS,
    st.text(max_size=12),
    st.sampled_from(ODD_TEXTS + ODD_REGEXES),
)
JUNK = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4)
    ),
    max_leaves=8,
)


def places(value: Any) -> list[tuple[Any, ...]]:
    """The path of every value within a value."""
    found: list[tuple[Any, ...]] = [()]
    if isinstance(value, (dict, list)):
        for key, one in value.items() if isinstance(value, dict) else enumerate(value):
            found += [(key, *path) for path in places(one)]
    return found


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(value[path[0]], path[1:], new)
    return copy


@st.composite
def bodies(draw: st.DrawFn) -> tuple[str, bytes]:
    """A path, and a body in which a value or two, anywhere, are others."""
    path = draw(st.sampled_from(list(BODIES)))
    body: Any = draw(st.sampled_from(BODIES[path]))
    for _ in range(draw(st.integers(0, 2))):
        body = replaced(body, draw(st.sampled_from(places(body))), draw(JUNK))
    if isinstance(body, dict) and draw(st.booleans()):
        body = {**body, draw(st.sampled_from([*COMMON, "regex", "grammar", "x"])): draw(JUNK)}
    return path, json.dumps(body).encode()


CUTS = st.tuples(st.integers(0, 300), st.integers(0, 4), st.binary(max_size=4))


@st.composite
def broken_bodies(draw: st.DrawFn) -> tuple[str, bytes]:
    """A path, and bytes that may not be JSON at all."""
    path, content = draw(bodies())
    if draw(st.booleans()):
        return path, draw(
            st.binary(max_size=200) | st.sampled_from([b"[" * 100_000, b"{", b"1e999"])
        )
    at, length, put = draw(CUTS)
    return path, content[:at] + put + content[at + length :]
