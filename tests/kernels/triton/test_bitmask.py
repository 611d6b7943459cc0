"""Grammar masks against unpacked bits."""

import numpy as np
import pytest
import torch

from branchline.kernels.triton.bitmask import apply_bitmask

from .compare import random


def bits_of(words, vocab):
    """Which tokens are allowed: bool [N, V]."""
    every = np.unpackbits(words.numpy().view(np.uint8), axis=1, bitorder="little")
    return torch.from_numpy(every[:, :vocab].astype(bool))


@pytest.mark.parametrize("vocab", [1, 31, 32, 33, 4096, 4099])
def test_what_a_mask_refuses_becomes_impossible(vocab):
    words = torch.from_numpy(
        np.random.default_rng(vocab).integers(-(2**31), 2**31, (2, vocab // 32 + 2), dtype=np.int32)
    )
    guard = torch.full((4, vocab + 16), 5.0)
    scores = guard[:, :vocab]
    scores.copy_(random(4, vocab))
    wanted = scores.clone()
    for row, allowed in zip((3, 0), bits_of(words, vocab), strict=True):
        wanted[row, ~allowed] = -torch.inf
    apply_bitmask(scores, words, torch.tensor([3, 0], dtype=torch.int32))
    assert torch.equal(scores, wanted)
    assert (guard[:, vocab:] == 5.0).all()


def test_a_mask_of_no_row_changes_nothing():
    scores = random(2, 40)
    wanted = scores.clone()
    wanted[1] = -torch.inf
    apply_bitmask(scores, torch.zeros(2, 2, dtype=torch.int32), torch.tensor([-1, 1]).int())
    assert torch.equal(scores, wanted)


def test_no_masks_start_nothing():
    scores = random(2, 40)
    empty = torch.zeros(0, dtype=torch.int32)
    apply_bitmask(scores, empty.view(0, 2), empty)
    assert torch.equal(scores, random(2, 40))


def test_a_mask_shorter_than_the_vocabulary_is_refused():
    with pytest.raises(AssertionError):
        apply_bitmask(
            random(1, 40),
            torch.zeros(1, 1, dtype=torch.int32),
            torch.tensor([0], dtype=torch.int32),
        )
