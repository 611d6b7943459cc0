"""What a single token reads as, for people who look at log-probabilities."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from branchline.runtime.grammar.vocabulary import byte_decoder

if TYPE_CHECKING:
    from collections.abc import Callable


class TokenTexts:
    """Texts by id. A special token reads as its name, an id that is unused as nothing.

    Args:
        spec: the tokenizer, as the `tokenizers` library writes it.

    Raises:
        ModelError: it is of a kind whose tokens' bytes are not known.
    """

    def __init__(self, spec: dict[str, Any]) -> None:
        self._bytes_of: Callable[[str], bytes] = byte_decoder(spec)
        vocabulary: dict[str, int] = spec["model"]["vocab"]
        self._tokens = {token: content for content, token in vocabulary.items()}
        added = spec["added_tokens"]
        self._tokens |= {token["id"]: token["content"] for token in added}
        self._special = frozenset(token["id"] for token in added if token["special"])

    def __call__(self, token: int) -> str:
        """What a token reads as; if that is no text by itself, `bytes:` and their escapes."""
        content = self._tokens.get(token, "")
        if token in self._special:
            return content
        data = self._bytes_of(content)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
