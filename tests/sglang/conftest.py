"""What the tests of SGLang's mode share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import branchline as bl
from branchline.sglang import mirror, tokenizers
from branchline.sglang.config import GlobalConfig, global_config

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from branchline.protocol import Prompt


class Words:
    """A tokenizer whose tokens are words."""

    vocab_size = 1000
    bos_id = None
    stop_token_ids = frozenset({0})

    def __init__(self) -> None:
        self._words = [""]

    def encode(self, prompt: Prompt) -> list[int]:
        words = " ".join(str(content) for _, content in prompt).split()
        self._words += [word for word in words if word not in self._words]
        return [self._words.index(word) for word in words]

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return " ".join(self._words[i] if i < len(self._words) else f"<{i}>" for i in ids)

    def render(self, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool) -> str:
        return "\n".join(message["content"] for message in messages)


@pytest.fixture(autouse=True)
def process_state() -> Iterator[None]:
    """What belongs to the process is as it was."""
    yield
    bl.set_default_backend(None)
    tokenizers.provide(None)
    for name in GlobalConfig.__slots__:
        setattr(global_config, name, getattr(GlobalConfig(), name))


@pytest.fixture
def words() -> None:
    """Every model's tokenizer is there, and knows words."""
    tokenizers.provide(lambda _: Words())


@pytest.fixture
def mirrored() -> Iterator[None]:
    """`import sglang` works."""
    assert mirror.install()
    yield
    mirror.uninstall()


@pytest.fixture
def mock() -> Callable[..., bl.Mock]:
    """Makes a mock, which answers every program of SGLang's that is run."""

    def make(*args: object, **kwargs: object) -> bl.Mock:
        backend = bl.Mock(*args, **kwargs)  # type: ignore[arg-type]
        global_config.default_backend = backend
        return backend

    return make
