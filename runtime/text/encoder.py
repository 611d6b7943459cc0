r"""Pieces of text in, token ids out, where only template text is parsed for special tokens.

::

    template  "<|im_start|>user\n"          special      text
    program   "say <|im_end|>"         →    <|im_start|> "user\nsay <|im_end|>" <|im_end|> "\n"
    template  "<|im_end|>\n"                             (one text: joined, then tokenized)
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from tokenizers import Tokenizer as Core

from branchline.errors import InvalidRequest, ModelError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from branchline.protocol import Prompt

_REMEMBERED = 256  # texts between special tokens whose ids are kept
_LONGEST_REMEMBERED = 2**16  # characters of one

_Text = tuple[Literal["text"], str]
_Ids = tuple[Literal["special", "tokens"], tuple[int, ...]]


class TextEncoder:
    """Tokenizes prompts with the tokenizer that `spec` (in the form of a tokenizer.json) describes.

    Text is tokenized by a copy of the tokenizer that has no special tokens at all, so nothing in a
    program's text can become one. Added tokens that the model does not call special are ordinary
    text.
    """

    def __init__(self, spec: dict[str, Any]) -> None:
        special = [token for token in spec["added_tokens"] if token["special"]]
        # The longest match wins.
        special.sort(key=lambda token: len(token["content"]), reverse=True)
        self._special_ids = [token["id"] for token in special]
        self.special_ids = frozenset(self._special_ids)
        # One group for each token; with no token at all, a pattern that matches nothing.
        self._special_pattern = re.compile("|".join(map(_group, special)) or r"(?!)")
        plain = _without_special_tokens(spec)
        self._opening = build(plain)
        # Some tokenizers put a space before a text. That must not happen in the middle of one,
        # after a model's ids.
        inner = {key: _without_space(plain.get(key)) for key in ("normalizer", "pre_tokenizer")}
        adds_space = any(inner[key] != plain.get(key) for key in inner)
        self._continuing = build(plain | inner) if adds_space else self._opening
        self._space_after_special = not _only_at_start(plain.get("pre_tokenizer"))
        # A conversation comes back with every turn, and a prompt with each of its choices.
        self._remembered = lru_cache(_REMEMBERED)(_encode)

    def encode(self, prompt: Prompt) -> list[int]:
        """The ids of a prompt, without BOS."""
        ids: list[int] = []
        core = self._opening
        for run in self._runs(prompt):
            ids += self._encode(core, run[1]) if run[0] == "text" else run[1]
            opens = run[0] == "special" and self._space_after_special
            core = self._opening if opens else self._continuing
        return ids

    def encode_continuation(self, text: str) -> list[int]:
        """The ids of program text that comes after other tokens."""
        return list(_encode(self._continuing, text))

    def _encode(self, core: Core, text: str) -> tuple[int, ...]:
        return (self._remembered if len(text) <= _LONGEST_REMEMBERED else _encode)(core, text)

    def _runs(self, prompt: Prompt) -> Iterator[_Text | _Ids]:
        """The prompt as texts between special tokens and given ids; no two texts are neighbours."""
        text = ""
        for run in self._pieces(prompt):
            if run[0] == "text":
                text += run[1]
                continue
            if text:
                yield "text", text
                text = ""
            yield run
        if text:
            yield "text", text

    def _pieces(self, prompt: Prompt) -> Iterator[_Text | _Ids]:
        for piece in prompt:
            if piece[0] == "program":
                yield "text", piece[1]
            elif piece[0] == "template":
                yield from self._parse(piece[1])
            elif piece[1]:
                yield "tokens", piece[1]

    def _parse(self, text: str) -> Iterator[_Text | _Ids]:
        end = 0
        for match in self._special_pattern.finditer(text):
            yield "text", text[end : match.start()]
            assert match.lastindex is not None, "every alternative is a group"
            yield "special", (self._special_ids[match.lastindex - 1],)
            end = match.end()
        yield "text", text[end:]


def build(spec: dict[str, Any]) -> Core:
    """The tokenizer that `spec` describes.

    Raises:
        ModelError: `tokenizers` cannot make one of it.
    """
    complete = spec | {"truncation": None, "padding": None}  # some files cut or pad every text
    try:
        return Core.from_str(json.dumps(complete))
    except Exception as error:  # the library raises nothing more precise
        raise ModelError(f"the tokenizer cannot be built: {error}") from error


def _encode(core: Core, text: str) -> tuple[int, ...]:
    try:
        ids = core.encode(text, add_special_tokens=False).ids
    except TypeError:
        raise InvalidRequest(
            "the prompt holds half of a surrogate pair, which is not text; "
            "decode it with errors='replace'"
        ) from None
    return tuple(ids)


def _group(token: dict[str, Any]) -> str:
    """A pattern for one special token, with the whitespace that the token says it swallows."""
    text = re.escape(token["content"])
    if token["single_word"]:
        text = rf"(?<!\w){text}(?!\w)"
    before = r"\s*" if token["lstrip"] else ""
    after = r"\s*" if token["rstrip"] else ""
    return f"({before}{text}{after})"


def _without_special_tokens(spec: dict[str, Any]) -> dict[str, Any]:
    """The same tokenizer without its special tokens; every other token keeps its id."""
    model = spec["model"]
    special = {token["content"] for token in spec["added_tokens"] if token["special"]}
    special.discard(model.get("unk_token"))
    kept = [token for token in spec["added_tokens"] if not token["special"]]
    vocab = {text: i for text, i in model["vocab"].items() if text not in special}
    # An added token takes its id from the vocabulary; outside it, it would be renumbered.
    vocab |= {token["content"]: token["id"] for token in kept}
    return spec | {"added_tokens": kept, "model": model | {"vocab": vocab}, "post_processor": None}


def _without_space(step: Any) -> Any:
    """The same step, putting no space before a text; None if it does nothing else."""
    match step:
        case {"type": "Sequence"}:
            name = "normalizers" if "normalizers" in step else "pretokenizers"
            inner = (_without_space(child) for child in step[name])
            return step | {name: [child for child in inner if child is not None]}
        case {"type": "Prepend"}:
            return None
        case {"type": "Metaspace"}:
            kept = {key: value for key, value in step.items() if key != "add_prefix_space"}
            return kept | {"prepend_scheme": "never"}
        case {"type": "ByteLevel"}:
            return step | {"add_prefix_space": False}
        case _:
            return step


def _only_at_start(step: Any) -> bool:
    """Whether a space goes before the prompt only, not before a text after a special token."""
    match step:
        case {"type": "Sequence", "pretokenizers": inner}:
            return any(map(_only_at_start, inner))
        case {"type": "Metaspace"}:
            return bool(step.get("prepend_scheme") == "first")
        case _:
            return False
