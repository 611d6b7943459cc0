"""The tokenizer of the real model."""

from __future__ import annotations

import pytest

from branchline.runtime.text import Tokenizer


@pytest.fixture(scope="session")
def smollm2_file(smollm2_path):
    from branchline.runtime.models.gguf_file import GGUFFile

    return GGUFFile(smollm2_path)


@pytest.fixture(scope="session")
def smollm2_tokenizer(smollm2_file) -> Tokenizer:
    return Tokenizer.from_gguf(smollm2_file)
