"""The tokenizer of a served model: prompts in, ids out, and back."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from branchline.errors import InvalidRequest, ModelError
from branchline.runtime.text.conversation import as_prompt
from branchline.runtime.text.detokenizer import Detokenizer
from branchline.runtime.text.directory_tokenizer import read_directory_tokenizer
from branchline.runtime.text.encoder import TextEncoder, build
from branchline.runtime.text.gguf_tokenizer import read_gguf_tokenizer
from branchline.runtime.text.jinja_template import (
    NoChatTemplate,
    compile_template,
    names_in,
    render,
)
from branchline.runtime.text.token_text import TokenTexts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import jinja2

    from branchline.protocol import Conversation, Prompt
    from branchline.runtime.text.gguf_tokenizer import Fields
    from branchline.runtime.text.parts import TokenizerParts


class Tokenizer:
    """Text to ids as the model was trained, with the rules of a prompt's pieces (see `encode`)."""

    def __init__(self, parts: TokenizerParts) -> None:
        self.vocab_size = parts.vocab_size
        self.stop_token_ids = parts.stop_token_ids
        self.bos_id = parts.bos_id
        self.adds_bos = parts.adds_bos
        self.chat_template = parts.chat_template
        self.spec = parts.spec
        self._special_texts = parts.special_texts
        self._core = build(parts.spec)
        self._encoder = TextEncoder(parts.spec)
        self.special_ids = self._encoder.special_ids
        self._token_texts: TokenTexts | None = None  # until somebody asks
        source = parts.chat_template
        self._template = compile_template(source) if source else None
        self._names = names_in(source) if source else frozenset()

    @classmethod
    def from_gguf(cls, file: Fields) -> Tokenizer:
        """The tokenizer in a GGUF file's own fields; ModelError for an unsupported kind."""
        return cls(read_gguf_tokenizer(file))

    @classmethod
    def from_directory(cls, path: Path) -> Tokenizer:
        """The tokenizer of a Hugging Face directory; ModelError for an unsupported kind."""
        return cls(read_directory_tokenizer(path))

    def encode(self, prompt: Prompt) -> list[int]:
        """The ids of a prompt.

        Neighbouring texts are joined, then tokenized. Special tokens are found in template text
        only. Ids are kept as they are. BOS comes first if this tokenizer adds it, and never twice.

        Raises:
            InvalidRequest: the prompt has no tokens, an id outside the vocabulary, or text that is
            not Unicode.
        """
        for piece in prompt:
            if piece[0] == "tokens":
                self._check_ids(piece[1])
        ids = self._encoder.encode(prompt)
        if self.adds_bos and ids[:1] != [self.bos_id]:
            assert self.bos_id is not None, "a tokenizer that adds BOS has one"
            ids.insert(0, self.bos_id)
        if not ids:
            raise InvalidRequest(
                "the prompt is empty: a generation needs at least one token to continue"
            )
        return ids

    def encode_continuation(self, text: str) -> list[int]:
        """The ids of program text in the middle of a sequence: no BOS, no space put before it."""
        return self._encoder.encode_continuation(text)

    def encode_choice(self, prompt: Prompt, choice: str) -> tuple[list[int], int]:
        """The ids of `prompt` followed by `choice`, and the index of the choice's first id.

        The two are tokenized as one text. The choice's ids are those after the longest common
        prefix with the prompt's own, so a last token that merged counts as the choice's. Where it
        is the prompt's only token that merged, there is nothing left to condition on, and the
        choice is tokenized by itself.

        Raises:
            InvalidRequest: as for `encode`, or the choice has no tokens.
        """
        alone = self.encode(prompt)
        ids = self.encode((*prompt, ("program", choice)))
        first = _common_prefix(alone, ids)
        if first == 0:
            ids = alone + self._encoder.encode((("program", choice),))
            first = len(alone)
        if first == len(ids):
            raise InvalidRequest(f"the choice {choice!r} has no tokens, so it has no likelihood")
        return ids, first

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of some ids; bytes that are no character become replacement characters."""
        self._check_ids(ids)
        text: str = self._core.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return text

    def token_texts(self) -> TokenTexts:
        """What each token reads as by itself; InvalidRequest where the tokenizer does not tell."""
        if self._token_texts is None:
            try:
                self._token_texts = TokenTexts(self.spec)
            except ModelError as error:
                raise InvalidRequest(f"logprob_texts: {error}") from None
        return self._token_texts

    def detokenizer(self, prompt_ids: Sequence[int], *, skip_special_tokens: bool) -> Detokenizer:
        """An incremental decoder of what continues `prompt_ids`."""
        return Detokenizer(self._core, prompt_ids, skip_special=skip_special_tokens)

    def render(self, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool) -> str:
        """A conversation as text, by the model's own chat template.

        Raises:
            NoChatTemplate: the model has none.
            InvalidRequest: its template refuses the conversation.
        """
        return render(self._own_template(), messages, add_generation_prompt, self._special_texts)

    def converse(self, conversation: Conversation) -> Prompt:
        """The prompt that the model's own chat template makes of a conversation.

        Only what the template itself says is template text: see `conversation.as_prompt`.

        Raises:
            NoChatTemplate: the model has none.
            InvalidRequest: the conversation breaks a rule, or the template refuses it.
        """
        template, now = self._own_template(), datetime.now()

        def render_all(messages: Any, *, tools: Any, add_generation_prompt: bool) -> str:
            texts = self._special_texts
            return render(template, messages, add_generation_prompt, texts, tools=tools, now=now)

        return as_prompt(conversation, render_all, self._names)

    @property
    def takes_tools(self) -> bool:
        """Whether the chat template shows tools, and calls of them."""
        return {"tools", "tool_calls"} <= self._names

    def _own_template(self) -> jinja2.Template:
        if self._template is None:
            raise NoChatTemplate("the model has no chat template; send text instead of messages")
        return self._template

    def _check_ids(self, ids: Sequence[int]) -> None:
        for token in ids:
            if not 0 <= token < self.vocab_size:
                raise InvalidRequest(
                    f"token id {token} is not in the vocabulary, 0 to {self.vocab_size - 1}"
                )


def _common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    same = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        same += 1
    return same
