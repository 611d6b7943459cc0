"""A `Mock`'s tokens: words and marks with the white space before them, and which are cached."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from branchline.protocol import Prompt

END = 0  # the id that ends an answer; it has no text
_TOKEN = re.compile(r"\s*\w+|\s*[^\w\s]|\s+")


class Vocabulary:
    """Gives every token an id when it is first seen."""

    def __init__(self) -> None:
        self._texts = [""]
        self._ids: dict[str, int] = {}

    def encode(self, text: str) -> list[int]:
        """The ids of a text."""
        return [self._id(token) for token in _TOKEN.findall(text)]

    def encode_prompt(self, prompt: Prompt) -> list[int]:
        """The ids of a prompt: neighbouring texts are one text, ids stay as they are."""
        ids: list[int] = []
        text = ""
        for _, content in prompt:
            if isinstance(content, str):
                text += content
            else:
                ids += (*self.encode(text), *content)
                text = ""
        return ids + self.encode(text)

    def text(self, ids: Sequence[int]) -> str:
        """The text of ids."""
        return "".join(self._texts[i] for i in ids)

    def prompt_text(self, prompt: Prompt) -> str:
        """A prompt as a reader sees it."""
        return "".join(
            content if isinstance(content, str) else self.text(content) for _, content in prompt
        )

    def _id(self, token: str) -> int:
        if token not in self._ids:
            self._ids[token] = len(self._texts)
            self._texts.append(token)
        return self._ids[token]


class PrefixCache:
    """Every sequence of ids there was, so that a prompt knows how much of it came before."""

    def __init__(self) -> None:
        self._root: dict[int, Any] = {}  # a tree of dicts by token
        self.tokens = 0

    def match(self, ids: Sequence[int]) -> int:
        """How many ids at the start are cached; the last one never counts, it is computed."""
        node, length = self._root, 0
        for token in ids[:-1]:
            if token not in node:
                break
            node, length = node[token], length + 1
        return length

    def add(self, ids: Sequence[int]) -> None:
        """Cache a sequence."""
        node = self._root
        for token in ids:
            if token not in node:
                node[token] = {}
                self.tokens += 1
            node = node[token]

    def clear(self) -> int:
        """Forget everything; how many tokens that were."""
        tokens, self.tokens, self._root = self.tokens, 0, {}
        return tokens
