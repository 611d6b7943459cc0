"""What a batch promises: rows are independent, except that they may read each other's pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor

from branchline.runtime.models import ForwardInputs

from .conftest import Row, make_checkpoint, open_directory, run, scattered

if TYPE_CHECKING:
    from pathlib import Path

    from branchline.runtime.models.decoder import Decoder

PAGES = 400


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("llama")
    make_checkpoint(directory, "llama", num_hidden_layers=2)
    return directory


@pytest.fixture(scope="module")
def model(directory: Path) -> Decoder:
    return open_directory(directory)


@pytest.fixture
def pages(model: Decoder) -> Tensor:
    """Scattered pages of a new pool that holds NaN, page 0 included."""
    model.allocate(PAGES)
    for k_pool, v_pool in model._pools:
        k_pool.fill_(float("nan"))
        v_pool.fill_(float("nan"))
    return scattered(PAGES)


@pytest.fixture
def alone(model: Decoder, pages: Tensor, prompt: list[int]) -> Tensor:
    """The prompt's logits from a row by itself, over pages that no test uses."""
    (logits,) = run(model, [Row(prompt, 0, pages[-100:])])
    assert logits.isfinite().all()
    return logits


def assert_close(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-4)


def test_decodes_and_extends_in_one_batch(
    model: Decoder, pages: Tensor, alone: Tensor, prompt: list[int]
) -> None:
    own = pages[:300].view(3, 100)
    run(model, [Row(prompt[:40], 0, own[0]), Row(prompt[:70], 0, own[1])])
    decode, extend, whole = run(
        model,
        [Row(prompt[40:41], 40, own[0]), Row(prompt[70:], 70, own[1]), Row(prompt, 0, own[2])],
    )
    assert_close(decode, alone[40:41])
    assert_close(extend, alone[70:])
    assert_close(whole, alone)


def test_a_row_reads_what_another_writes_in_the_same_forward(
    model: Decoder, pages: Tensor, alone: Tensor, prompt: list[int]
) -> None:
    shared, own, other = pages[:60], pages[60:100], pages[100:140]
    tail = [5, 6, 7]
    mine, _, theirs = run(
        model,
        [
            Row(prompt[60:], 60, torch.cat((shared, own))),  # before the row that writes its prefix
            Row(prompt[:60], 0, shared),
            Row(tail, 60, torch.cat((shared, other))),
        ],
    )
    assert_close(mine, alone[60:])
    (solo,) = run(model, [Row(prompt[:60] + tail, 0, pages[140:240])])
    assert_close(theirs, solo[60:])


def test_recomputed_positions_write_to_page_0_and_change_nothing(
    model: Decoder, pages: Tensor, alone: Tensor, prompt: list[int]
) -> None:
    run(model, [Row(prompt[:80], 0, pages)])
    before = [pool[pages[:80]].clone() for pools in model._pools for pool in pools]
    (again,) = run(model, [Row(prompt[50:], 50, pages, recomputed=30)])
    assert_close(again, alone[50:])
    after = [pool[pages[:80]] for pools in model._pools for pool in pools]
    assert all(torch.equal(old, new) for old, new in zip(before, after, strict=True))
    (last,) = run(model, [Row(prompt[-1:], len(prompt) - 1, pages, recomputed=1)])
    assert_close(last, alone[-1:])


def test_only_the_rows_asked_for_have_logits(
    model: Decoder, pages: Tensor, alone: Tensor, prompt: list[int]
) -> None:
    def ask(rows: list[int]) -> Tensor:
        count = len(prompt)
        return model.forward(
            ForwardInputs(
                input_ids=torch.tensor(prompt),
                positions=torch.arange(count),
                write_pages=pages[:count],
                logit_rows=torch.tensor(rows, dtype=torch.int64),
                q_indptr=[0, count],
                kv_lens=[count],
                page_table=pages[None, :count],
                slots=[0],
            )
        )

    assert_close(ask([89, 3]), alone[[89, 3]])
    assert ask([]).shape == (0, model.vocab_size)


def test_the_bytes_of_a_page(model: Decoder) -> None:
    model.allocate(10)
    held = sum(pool.nbytes for pools in model._pools for pool in pools)
    assert held == 10 * model.page_bytes


def test_allocating_again_forgets_the_old_pool(model: Decoder, prompt: list[int]) -> None:
    model.allocate(120)
    run(model, [Row(prompt, 0, scattered(120))])
    model.allocate(50)
    assert all(pool.shape[0] == 50 and not pool.any() for pools in model._pools for pool in pools)
