"""Tokenizers for programs that count tokens or want their texts.

The language has none: whoever installs this package (`branchline run`) brings the runtime's.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Protocol

from branchline.errors import BranchlineError, InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from branchline.protocol import Prompt


class RuntimeTokenizer(Protocol):
    """What is needed of the runtime's tokenizer."""

    vocab_size: int
    bos_id: int | None
    stop_token_ids: frozenset[int]

    def encode(self, prompt: Prompt) -> list[int]:
        """The ids of a prompt."""

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of ids."""

    def render(self, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool) -> str:
        """A conversation as text."""


class Encoding(dict[str, Any]):
    """What calling a tokenizer gives: a dict whose keys are attributes as well."""

    @property
    def input_ids(self) -> Any:
        """The ids: a list, or a list of lists."""
        return self["input_ids"]


class Tokenizer:
    """The runtime's tokenizer with the methods of Hugging Face's that programs use."""

    def __init__(self, tokenizer: RuntimeTokenizer) -> None:
        self._tokenizer = tokenizer
        self.vocab_size = tokenizer.vocab_size
        self.bos_token_id = tokenizer.bos_id
        self.eos_token_id = min(tokenizer.stop_token_ids, default=None)

    def __len__(self) -> int:
        return self.vocab_size

    def __call__(self, text: str | Sequence[str], **_: Any) -> Encoding:
        """Encode a text, or each of several."""
        ids = self.encode(text) if isinstance(text, str) else [self.encode(one) for one in text]
        return Encoding(input_ids=ids)

    def encode(self, text: str, **_: Any) -> list[int]:
        """The ids of a text; special tokens in it are parsed."""
        return self._tokenizer.encode((("template", text),)) if text else []

    def decode(self, ids: int | Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """The text of an id or of several."""
        ids = [ids] if isinstance(ids, int) else ids
        return self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)

    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, str]],
        *,
        tokenize: bool = True,
        add_generation_prompt: bool = False,
    ) -> str | list[int]:
        """A conversation by the model's own template."""
        text = self._tokenizer.render(conversation, add_generation_prompt=add_generation_prompt)
        return self.encode(text) if tokenize else text


_load: Callable[[str], RuntimeTokenizer] | None = None


def provide(load: Callable[[str], RuntimeTokenizer] | None) -> None:
    """Say how a model's tokenizer is loaded by the model's name; None takes it back."""
    global _load  # noqa: PLW0603 - it belongs to the process, as the mirrored modules do
    _load = load
    get_tokenizer.cache_clear()
    token_text.cache_clear()


@functools.lru_cache(maxsize=8)
def get_tokenizer(tokenizer_name: str, **_: Any) -> Tokenizer:
    """A model's tokenizer, by what the model is called: a catalogue name, a file, a directory.

    Raises:
        InvalidRequest: there is no way to load one here.
        ModelError: the model does not exist, or its tokenizer is of an unsupported kind.
    """
    if _load is None:
        raise InvalidRequest(
            f"get_tokenizer({tokenizer_name!r}): `branchline run` knows how to load a tokenizer; "
            "run the program with it"
        )
    return Tokenizer(_load(tokenizer_name))


@functools.lru_cache(maxsize=65536)
def token_text(model: str, token: int) -> str | None:
    """The text of one token of a model; None where its tokenizer cannot be loaded here."""
    try:
        return get_tokenizer(model).decode(token)
    except BranchlineError:
        return None
