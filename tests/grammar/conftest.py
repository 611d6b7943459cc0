"""The tokenizer and vocabulary of the real model."""

from __future__ import annotations

import pytest

from branchline.runtime.grammar.vocabulary import Vocabulary
from branchline.runtime.text import Tokenizer


@pytest.fixture(scope="session")
def smollm2_tokenizer(smollm2_path) -> Tokenizer:
    from branchline.runtime.models.gguf_file import GGUFFile

    return Tokenizer.from_gguf(GGUFFile(smollm2_path))


@pytest.fixture(scope="session")
def smollm2_vocabulary(smollm2_tokenizer) -> Vocabulary:
    return Vocabulary.of(smollm2_tokenizer)
