"""Tokenizers of Hugging Face directories: byte level, and sentencepiece with its spaces."""

from __future__ import annotations

import json

import pytest

from branchline.errors import ModelError
from branchline.runtime.text import TextStream, Tokenizer
from branchline.sampling_params import SamplingParams

from .small import BYTES, program


def added(token, content, **flags):
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": token, "content": content, "special": True} | plain | flags


def byte_level(**changes):
    """256 bytes in the vocabulary; added tokens beyond it."""
    step = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    vocab = {char: i for i, char in enumerate(BYTES.values())}
    return {
        "version": "1.0",
        "truncation": {
            "max_length": 2,
            "strategy": "LongestFirst",
            "stride": 0,
            "direction": "Right",
        },
        "padding": None,
        "added_tokens": [
            added(256, "<s>"),
            added(257, "<think>", special=False),
            added(258, "</s>"),
        ],
        "normalizer": None,
        "pre_tokenizer": step,
        "post_processor": None,
        "decoder": step,
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    } | changes


def sentencepiece(normalizer=None, pre_tokenizer=None):
    """Llama 2's kind: a space before a text, spaces as ▁, and bytes for what is not there."""
    texts = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "▁",
        *"abhi",
        "▁h",
    ]
    space = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [added(i, text) for i, text in enumerate(texts[:3])],
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [
                {"SpecialToken": {"id": "<s>", "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}},
            ],
            "pair": [],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
        },
        "decoder": {
            "type": "Sequence",
            "decoders": [space, {"type": "ByteFallback"}, {"type": "Fuse"}, strip],
        },
        "model": {
            "type": "BPE",
            "vocab": {text: i for i, text in enumerate(texts)},
            "merges": [["▁", "h"]],
            "unk_token": "<unk>",
            "byte_fallback": True,
            "fuse_unk": True,
        },
    }


PREPEND = {
    "type": "Sequence",
    "normalizers": [
        {"type": "Prepend", "prepend": "▁"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
    ],
}


def metaspace(scheme):
    return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": False}


@pytest.fixture
def directory(tmp_path):
    """Writes files of a model's directory and returns it."""

    def write(**files):
        for name, content in files.items():
            (tmp_path / f"{name}.json").write_text(
                content if isinstance(content, str) else json.dumps(content)
            )
        return tmp_path

    return write


def test_ids_ends_and_bos(directory):
    path = directory(
        tokenizer=byte_level(),
        tokenizer_config={
            "bos_token": "<s>",
            "eos_token": {"content": "</s>"},
            "add_bos_token": True,
        },
        config={"vocab_size": 300, "eos_token_id": 5},
        generation_config={"eos_token_id": [7, 8]},
    )
    tokenizer = Tokenizer.from_directory(path)
    assert tokenizer.vocab_size == 300
    assert tokenizer.stop_token_ids == {7, 8, 258}
    ids = tokenizer.encode((("program", "<s>a<think>"), ("tokens", (299,)), ("template", "</s>")))
    assert ids == [256, *(list(BYTES).index(byte) for byte in b"<s>a"), 257, 299, 258]
    (path / "generation_config.json").unlink()
    assert Tokenizer.from_directory(path).stop_token_ids == {5, 258}


def test_the_same_ids_as_transformers(directory):
    from transformers import PreTrainedTokenizerFast

    path = directory(tokenizer=byte_level() | {"truncation": None})
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(path / "tokenizer.json"))
    text = "Hi <think></s>\n\n世界"
    assert Tokenizer.from_directory(path).encode((("template", text),)) == theirs(text)["input_ids"]


def test_special_tokens_that_swallow_spaces(directory):
    tokens = [added(256, "<l>", lstrip=True), added(257, "<r>", rstrip=True)]
    tokens.append(added(258, "<w>", single_word=True))
    tokenizer = Tokenizer.from_directory(directory(tokenizer=byte_level(added_tokens=tokens)))
    ids = tokenizer.encode((("template", "a <l> <r> \n"), ("program", "b")))
    assert [i for i in ids if i > 255] == [256, 257]
    assert tokenizer.decode(ids) == "a b"  # the space between the two is nobody's
    assert 258 in tokenizer.encode((("template", "<w>"),))
    assert 258 not in tokenizer.encode((("template", "x<w>"),))


@pytest.mark.parametrize(
    ("spec", "after_special"),
    [
        (sentencepiece(normalizer=PREPEND), "▁h"),
        (sentencepiece(pre_tokenizer=metaspace("always")), "▁h"),
        (sentencepiece(pre_tokenizer=metaspace("first")), "h"),
        (sentencepiece(pre_tokenizer=metaspace("never")), "h"),
    ],
)
def test_a_space_goes_before_a_text_but_never_into_one(directory, spec, after_special):
    tokenizer = Tokenizer.from_directory(directory(tokenizer=spec))
    vocab = spec["model"]["vocab"]
    never = spec["pre_tokenizer"] == metaspace("never")
    assert tokenizer.encode(program("h")) == [1, vocab["h" if never else "▁h"]]
    templated = tokenizer.encode((("template", "<s>"), ("program", "h")))
    assert templated == [1, vocab[after_special]]
    continued = tokenizer.encode((("tokens", (vocab["a"],)), ("program", "h")))
    assert continued == [1, vocab["a"], vocab["h"]]
    assert tokenizer.encode((("tokens", (vocab["a"],)), ("program", " h")))[-1] == vocab["▁h"]
    assert not {1, 2} & set(tokenizer.encode(program("<s></s>"))[1:])


def test_bos_is_known_from_the_post_processor(directory):
    tokenizer = Tokenizer.from_directory(directory(tokenizer=sentencepiece(normalizer=PREPEND)))
    assert (tokenizer.adds_bos, tokenizer.bos_id) == (True, 1)
    path = directory(tokenizer_config={"add_bos_token": False})
    assert not Tokenizer.from_directory(path).adds_bos


def stream_of(tokenizer, prompt=(), **params):
    return TextStream(tokenizer, prompt, SamplingParams(**params), frozenset())


def test_a_streams_first_space_depends_on_the_prompt(directory):
    spec = sentencepiece(normalizer=PREPEND)
    tokenizer, vocab = Tokenizer.from_directory(directory(tokenizer=spec)), spec["model"]["vocab"]
    stream = stream_of(tokenizer, [vocab["a"]])
    assert [stream.push(vocab[t]) for t in ("▁h", "i", "▁h")] == [" h", "i", " h"]


def test_bytes_that_change_what_was_said_restart_the_stream(directory):
    spec = sentencepiece(normalizer=PREPEND)
    tokenizer, vocab = Tokenizer.from_directory(directory(tokenizer=spec)), spec["model"]["vocab"]
    ids = [
        vocab[token] for token in ("h", "<0x41>", "<0xE4>", "a", "▁h", "<0xE4>", "<0xB8>", "<0x96>")
    ]
    stream = stream_of(tokenizer)
    parts = [stream.push(token) for token in ids]
    assert parts == ["h", "A", "", "\ufffda", " h", "", "", "世"]
    assert stream.finish() == ""
    assert stream.kept == len(ids)


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({}, "has no tokenizer.json"),
        ({"tokenizer": "{"}, "tokenizer.json cannot be read"),
        ({"tokenizer": "[1]"}, "holds no JSON object"),
        ({"tokenizer": {"a": 1}}, "is not a tokenizer"),
        ({"tokenizer": byte_level(model={"type": "Unigram", "vocab": []})}, "of kind Unigram"),
        ({"tokenizer": byte_level(pre_tokenizer={"type": "Nonsense"})}, "cannot be built"),
        ({"tokenizer": byte_level(), "tokenizer_config": {"add_bos_token": True}}, "adds BOS"),
    ],
)
def test_what_is_not_supported_is_refused(directory, files, says):
    with pytest.raises(ModelError, match=says):
        Tokenizer.from_directory(directory(**files))


def test_where_chat_templates_are_kept(directory):
    named = [{"name": "tools", "template": "t"}, {"name": "default", "template": "d"}]
    path = directory(tokenizer=byte_level(), tokenizer_config={"chat_template": "plain"})
    assert Tokenizer.from_directory(path).chat_template == "plain"
    directory(tokenizer_config={"chat_template": named})
    assert Tokenizer.from_directory(path).chat_template == "d"
    (path / "chat_template.jinja").write_text("file {{ eos_token }}")
    assert Tokenizer.from_directory(path).chat_template == "file {{ eos_token }}"
    (path / "chat_template.jinja").unlink()
    directory(tokenizer_config={})
    assert Tokenizer.from_directory(path).chat_template is None
