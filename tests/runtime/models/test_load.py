"""`load`: the real model, and a directory with everything in it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import torch
from tokenizers import Tokenizer as Core
from tokenizers import decoders, models, pre_tokenizers

from branchline.errors import ModelError
from branchline.runtime.models.load import Loaded, load

from .conftest import VOCAB, Row, make_checkpoint, oracle_logits, run, scattered

if TYPE_CHECKING:
    from pathlib import Path

PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    " * 8,
)


def test_the_card_of_smollm2(smollm2: Loaded) -> None:
    card = smollm2.card
    assert (card.vocab_size, card.context_length) == (49152, 8192)
    assert card.stop_token_ids == (2,)
    assert card.generation_defaults == {}
    assert card.chat_template is not None
    assert card.chat_template.prefix["user"] == "<|im_start|>user\n"
    assert smollm2.model.page_bytes == 30 * 2 * 3 * 64 * 4


@pytest.mark.parametrize("text", PROMPTS, ids=["short", "code"])
def test_logits_of_smollm2(smollm2: Loaded, oracle: torch.nn.Module, text: str) -> None:
    ids = smollm2.tokenizer.encode((("program", text),))
    smollm2.model.allocate(400)
    pages = scattered(400)
    wanted = oracle_logits(oracle, ids)
    whole, head = run(smollm2.model, [Row(ids, 0, pages), Row(ids[:3], 0, pages[len(ids) :])])
    torch.testing.assert_close(whole, wanted, rtol=0, atol=2e-3)
    torch.testing.assert_close(head, wanted[:3], rtol=0, atol=2e-3)
    last = run(smollm2.model, [Row(ids[-1:], len(ids) - 1, pages, recomputed=1)])[0]
    torch.testing.assert_close(last, wanted[-1:], rtol=0, atol=2e-3)
    assert torch.equal(whole.argmax(-1), wanted.argmax(-1))


def save_tokenizer(directory: Path, size: int) -> None:
    """A byte-level tokenizer of `size` tokens that merges nothing, with an end of text, id 2."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())[: size - 3]
    vocabulary = {token: i for i, token in enumerate(["<unk>", "<s>", "</s>", *letters])}
    core = Core(models.BPE(vocab=vocabulary, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens(["<unk>", "<s>", "</s>"])
    core.save(str(directory / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>"}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))


def test_a_directory(tmp_path: Path) -> None:
    directory = tmp_path / "Tiny-1.5"
    model = make_checkpoint(directory, "qwen2")
    save_tokenizer(directory, VOCAB)
    (directory / "generation_config.json").write_text(
        json.dumps({"temperature": 0.6, "eos_token_id": [2, 7]})
    )
    loaded = load(directory)
    assert loaded.card.name == "Tiny-1.5"
    assert loaded.card.stop_token_ids == (2, 7)
    assert loaded.card.generation_defaults == {"temperature": 0.6}
    assert loaded.card.chat_template is None
    ids = loaded.tokenizer.encode((("program", "Hello"),))
    loaded.model.allocate(20)
    torch.testing.assert_close(
        run(loaded.model, [Row(ids, 0, scattered(20))])[0],
        oracle_logits(model, ids),
        rtol=0,
        atol=1e-4,
    )


def test_bfloat16(tmp_path: Path) -> None:
    model = make_checkpoint(tmp_path, "llama")
    save_tokenizer(tmp_path, VOCAB)
    loaded = load(tmp_path, dtype=torch.bfloat16)
    assert loaded.model.page_bytes == 3 * 2 * 2 * 16 * 2
    loaded.model.allocate(20)
    ids = [3, 50, 7, 9]
    (found,) = run(loaded.model, [Row(ids, 0, scattered(20))])
    wanted = oracle_logits(model, ids)
    assert found.dtype == torch.float32
    assert torch.corrcoef(torch.stack((found.flatten(), wanted.flatten())))[0, 1] > 0.995


def test_a_tokenizer_with_more_tokens_than_the_model(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, "llama", vocab_size=100)
    save_tokenizer(tmp_path, VOCAB)
    with pytest.raises(ModelError, match="its tokenizer has 131 tokens, the model only 100"):
        load(tmp_path)
