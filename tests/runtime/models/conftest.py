"""Tiny random checkpoints saved by transformers, and a way to run a model over pages."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor

from branchline.kernels import cpu_kernels
from branchline.runtime.models import ForwardInputs, Model
from branchline.runtime.models.config import config_of_directory
from branchline.runtime.models.decoder import Decoder
from branchline.runtime.models.weights import SafetensorsWeights

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

VOCAB = 131


@dataclass(frozen=True)
class Row:
    """Tokens of one sequence to compute: positions [start, start + len(ids)) over its pages."""

    ids: Sequence[int]
    start: int
    pages: Tensor  # of all positions
    recomputed: int = 0  # so many of the ids write to page 0


def run(model: Model, rows: Sequence[Row]) -> list[Tensor]:
    """One forward of all rows; the logits of every token, row by row."""
    counts = [len(row.ids) for row in rows]
    kv_lens = [row.start + len(row.ids) for row in rows]
    page_table = torch.zeros((len(rows) + 1, max(kv_lens)), dtype=torch.int64)
    slots = list(range(len(rows), 0, -1))
    positions, write_pages = [], []
    for number, (row, end) in enumerate(zip(rows, kv_lens, strict=True)):
        page_table[slots[number], :end] = row.pages[:end]
        positions.append(torch.arange(row.start, end))
        write_pages.append(row.pages[row.start : end].clone())
        write_pages[-1][: row.recomputed] = 0
    logits = model.forward(
        ForwardInputs(
            input_ids=torch.tensor([token for row in rows for token in row.ids]),
            positions=torch.cat(positions),
            write_pages=torch.cat(write_pages),
            logit_rows=torch.arange(sum(counts)),
            q_indptr=[0, *torch.tensor(counts).cumsum(0).tolist()],
            kv_lens=kv_lens,
            page_table=page_table,
            slots=slots,
        )
    )
    return list(logits.split(counts))


def scattered(pages: int, seed: int = 0) -> Tensor:
    """All pages of a pool but 0, in random order."""
    return torch.randperm(pages - 1, generator=torch.Generator().manual_seed(seed)) + 1


def make_checkpoint(directory: Path, kind: str, **settings: Any) -> Any:
    """Save a random model of `kind` with transformers; the model itself."""
    from transformers import AutoConfig, AutoModelForCausalLM

    shard_size = settings.pop("max_shard_size", "1GB")
    sizes = {
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "pad_token_id": None,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    config = AutoConfig.for_model(kind, **{**sizes, **settings})
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():  # transformers starts norms at 1 and biases at 0: nothing to confuse
        for name, weight in model.named_parameters():
            if name.endswith("bias"):
                weight.normal_(0.0, 0.5)
            elif "norm" in name:
                weight.normal_(1.0, 0.3)
            else:
                weight.normal_(0.0, 0.2)
    model.save_pretrained(directory, max_shard_size=shard_size)
    return model


def open_directory(directory: Path) -> Decoder:
    config = config_of_directory(directory)
    weights = SafetensorsWeights(directory, torch.float32)
    return Decoder(config, weights, cpu_kernels(), torch.float32)


def edit_config(directory: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    path = directory / "config.json"
    config = json.loads(path.read_text())
    edit(config)
    path.write_text(json.dumps(config))


@pytest.fixture(scope="session")
def prompt() -> list[int]:
    return torch.randint(0, VOCAB, (90,), generator=torch.Generator().manual_seed(3)).tolist()


def oracle_logits(model: Any, ids: Sequence[int]) -> Tensor:
    with torch.inference_mode():
        logits: Tensor = model(torch.tensor([ids])).logits[0]
    return logits
