"""What a tokenizer is made of, whichever file it was read from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerParts:
    """The one form that GGUF files and Hugging Face directories are both read into."""

    spec: dict[str, Any]  # as a tokenizer.json holds it: normalizer, pre_tokenizer, model, ...
    vocab_size: int  # of the model: ids from 0 to below it
    stop_token_ids: frozenset[int]  # every id that the files call an end
    bos_id: int | None
    adds_bos: bool
    chat_template: str | None  # Jinja source
    # bos_token, eos_token and the like, by the names that chat templates use
    special_texts: dict[str, str] = field(default_factory=dict)
