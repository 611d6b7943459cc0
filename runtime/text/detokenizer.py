"""Token ids in, text out, never half a character and nothing taken back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenizers.decoders import DecodeStream

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokenizers import Tokenizer as Core

# Enough of a prompt: decoders look back only to see whether a text begins.
_CONTEXT = 6
_HALF = "\ufffd"  # what bytes that are no character (yet) decode to
_INVALID_PREFIX = "Invalid prefix"  # how the message of `DecodeStream`'s untyped exception begins


class Detokenizer:
    """Turns ids into text as they come, as the continuation of a prompt.

    The text is what the ids add to the prompt's text. Where the prompt ends inside a character that
    cannot be said, so there the ids are decoded on their own.
    """

    def __init__(self, core: Core, prompt_ids: Sequence[int], *, skip_special: bool) -> None:
        self._core = core
        self._skip_special = skip_special
        self._context = list(prompt_ids[-_CONTEXT:])
        if self._decode(self._context).endswith(_HALF):
            self._context = []
        self._stream = DecodeStream(ids=self._context, skip_special_tokens=skip_special)
        self._pending: list[int] = []  # pushed since the last text
        # Each text that came out: the ids before it, its own ids, and where it ends in the whole.
        self._chunks: list[tuple[list[int], list[int], int]] = []
        self.text = ""

    def push(self, token: int) -> str:
        """The text that is complete with `token`; often one word, and empty inside a character."""
        self._pending.append(token)
        try:
            chunk = self._stream.step(self._core, token)
        except Exception as error:  # the library raises nothing more precise
            if not str(error).startswith(_INVALID_PREFIX):
                raise
            # The new id changed how earlier bytes decode, which have been said. Go on after them.
            self._context = []
            self._stream = DecodeStream(skip_special_tokens=self._skip_special)
            chunk = self._stream.step(self._core, self._pending)
        return self._emit(chunk) if chunk else ""

    def flush(self) -> str:
        """What is left: half a character, as a replacement character. The next id begins anew."""
        chunk = self._beyond(self._pending)
        if not chunk:
            return ""
        self._stream = DecodeStream(skip_special_tokens=self._skip_special)
        self._emit(chunk)
        self._context = []
        return chunk

    def split(self, cut: int) -> tuple[int, str]:
        """How many ids lie wholly in the first `cut` characters, and the text there beyond them.

        A cut inside a token, or between tokens that make up one character, goes back to where the
        text of the ids is whole.
        """
        kept = start = 0
        for context, ids, end in self._chunks:
            if end > cut:
                chunk = self.text[start:end]
                inside, length = self._inside(context, ids, chunk, cut - start)
                return kept + inside, self.text[start + length : cut]
            kept, start = kept + len(ids), end
        return kept, ""

    def _inside(
        self, context: list[int], ids: list[int], chunk: str, limit: int
    ) -> tuple[int, int]:
        """The most of `ids` whose text is whole and fits in `limit` characters, and its length."""
        for count in range(len(ids) - 1, 0, -1):
            text = self._beyond(ids[:count], context)
            if len(text) <= limit and chunk.startswith(text):
                return count, len(text)
        return 0, 0

    def _emit(self, chunk: str) -> str:
        self.text += chunk
        self._chunks.append((self._context, self._pending, len(self.text)))
        self._context, self._pending = self._pending, []
        return chunk

    def _beyond(self, ids: list[int], context: list[int] | None = None) -> str:
        """What `ids` add to the text of `context` (the ids before the pending ones)."""
        context = self._context if context is None else context
        before = self._decode(context)
        whole = self._decode(context + ids)
        return whole[len(before) :] if whole.startswith(before) else self._decode(ids)

    def _decode(self, ids: list[int]) -> str:
        text: str = self._core.decode(ids, skip_special_tokens=self._skip_special)
        return text
