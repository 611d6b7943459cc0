"""Builds a tokenizer from the fields of a GGUF file alone.

The file says which byte-level BPE it holds (`tokenizer.ggml.model`) and how text is split before
the merges (`tokenizer.ggml.pre`). The split decides the token ids, so a name that is not known is
refused, never guessed.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Protocol

from branchline.errors import ModelError
from branchline.runtime.text.parts import TokenizerParts


class Fields(Protocol):
    """What is read of a GGUF file: its metadata."""

    def value(self, key: str, default: Any = None) -> Any:
        """The value of `key` as a plain Python object, or `default`."""


class _Type(IntEnum):
    """The values of `tokenizer.ggml.token_type`."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


def _byte_level(*, use_regex: bool) -> dict[str, Any]:
    return {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": use_regex,
    }


def _split(pattern: str) -> dict[str, Any]:
    """Matches and what lies between them become pieces of their own."""
    return {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": "Isolated",
        "invert": False,
    }


def _llama3_like(digits: str) -> list[dict[str, Any]]:
    """Llama 3's pattern; the models that took it over differ in how many digits make a piece."""
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
        + digits
        + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    return [_split(pattern), _byte_level(use_regex=False)]


# By `tokenizer.ggml.pre`. Each step splits the pieces of the step before it.
_GPT2 = [_byte_level(use_regex=True)]
_SMOLLM = [{"type": "Digits", "individual_digits": True}, *_GPT2]
_LLAMA3 = _llama3_like(r"\p{N}{1,3}")
_QWEN2 = _llama3_like(r"\p{N}")
_DEFAULT = [  # llama.cpp's fallback: punctuation first, and digits in groups of three
    _split(r"[\p{P}\$\+<=>\^~\|]+"),
    _split(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"),
    _split(r"\p{N}+"),
    _split(r"[0-9][0-9][0-9]"),
    _byte_level(use_regex=False),
]
_PRE_TOKENIZERS = {
    "default": _DEFAULT,
    "gpt-2": _GPT2,
    "smollm": _SMOLLM,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": _QWEN2,
}
# These take a piece that is a token as it is, without merging, and begin with BOS unless the file
# says otherwise.
_LLAMA3_KINDS = frozenset({"llama-bpe", "llama3", "llama-v3"})

_STOP_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
_TEXT_KEYS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "pad_token": "padding_token_id",
    "unk_token": "unknown_token_id",
}


def read_gguf_tokenizer(file: Fields) -> TokenizerParts:
    """The tokenizer that a GGUF file describes.

    Raises:
        ModelError: the file has no tokenizer, or one of a kind that is not supported.
    """
    kind = file.value("tokenizer.ggml.model")
    if kind != "gpt2":
        raise ModelError(
            f"tokenizer.ggml.model is {kind!r}: of a GGUF file only 'gpt2' (byte-level BPE) is "
            "supported; serve the model from its Hugging Face directory"
        )
    pre = file.value("tokenizer.ggml.pre")
    if pre not in _PRE_TOKENIZERS:
        raise ModelError(
            f"tokenizer.ggml.pre is {pre!r}: supported are {', '.join(sorted(_PRE_TOKENIZERS))}; "
            "another split of the text would give wrong token ids"
        )
    tokens = _required(file, "tokens")
    types = file.value("tokenizer.ggml.token_type") or [_Type.NORMAL] * len(tokens)
    if len(types) != len(tokens):
        raise ModelError(f"the file has {len(tokens)} tokens but {len(types)} token types")
    bos_id = _token_id(file, "bos_token_id", len(tokens))
    adds_bos = file.value("tokenizer.ggml.add_bos_token")
    if adds_bos is None:
        adds_bos = pre in _LLAMA3_KINDS
    if adds_bos and bos_id is None:
        raise ModelError("the tokenizer adds BOS, but the file has no tokenizer.ggml.bos_token_id")
    stops = (_token_id(file, key, len(tokens)) for key in _STOP_KEYS)
    texts = {name: _token_id(file, key, len(tokens)) for name, key in _TEXT_KEYS.items()}
    return TokenizerParts(
        spec=_spec(tokens, types, _required(file, "merges"), pre),
        vocab_size=len(tokens),
        stop_token_ids=frozenset(token for token in stops if token is not None),
        bos_id=bos_id,
        adds_bos=bool(adds_bos),
        chat_template=file.value("tokenizer.chat_template"),
        special_texts={name: tokens[token] for name, token in texts.items() if token is not None},
    )


def _spec(tokens: list[str], types: list[int], merges: list[str], pre: str) -> dict[str, Any]:
    vocab = {text: i for i, text in enumerate(tokens) if types[i] != _Type.UNUSED}
    added = [
        {
            "id": i,
            "content": text,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": types[i] != _Type.USER_DEFINED,
        }
        for i, text in enumerate(tokens)
        if types[i] in {_Type.CONTROL, _Type.UNKNOWN, _Type.USER_DEFINED}
    ]
    return {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": _PRE_TOKENIZERS[pre]},
        "post_processor": None,
        "decoder": _byte_level(use_regex=True),
        "model": {
            "type": "BPE",
            "vocab": vocab,
            "merges": [_pair(merge) for merge in merges],
            "ignore_merges": pre in _LLAMA3_KINDS,
        },
    }


def _pair(merge: str) -> tuple[str, str]:
    """The two tokens of a merge, at the first space that is not the left one's own beginning."""
    cut = merge.find(" ", 1)
    if cut < 0:
        raise ModelError(f"tokenizer.ggml.merges holds {merge!r}, which is not a merge")
    return merge[:cut], merge[cut + 1 :]


def _required(file: Fields, name: str) -> list[str]:
    values: list[str] | None = file.value(f"tokenizer.ggml.{name}")
    if not values:
        raise ModelError(f"the file has no tokenizer.ggml.{name}: it holds no complete tokenizer")
    return values


def _token_id(file: Fields, key: str, vocab_size: int) -> int | None:
    token: int | None = file.value(f"tokenizer.ggml.{key}")
    if token is not None and not 0 <= token < vocab_size:
        raise ModelError(f"tokenizer.ggml.{key} is {token}, but the file has {vocab_size} tokens")
    return token
