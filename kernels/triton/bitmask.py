"""Grammar masks: in the rows that have one, a token whose bit is 0 becomes impossible."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import triton
import triton.language as tl

from branchline.kernels.triton.launch import launch
from branchline.kernels.triton.variant import Variant

if TYPE_CHECKING:
    from torch import Tensor

WORD = tl.constexpr(32)  # tokens of a word, the lowest bit first
_BLOCK = 4096  # tokens of a program


@triton.jit
def bitmask_kernel(scores, words, rows, vocab, stride, words_stride, BLOCK: tl.constexpr):
    """Program (i, b) masks block b of the row `rows[i]` of scores by mask i; −1 is no row."""
    mask = tl.program_id(0).to(tl.int64)
    row = tl.load(rows + mask).to(tl.int64)
    if row >= 0:
        first = tl.program_id(1) * BLOCK
        word = first // WORD + tl.arange(0, BLOCK // WORD)
        bits = tl.load(words + mask * words_stride + word, mask=word * WORD < vocab, other=-1)
        allowed = (bits[:, None] >> tl.arange(0, WORD)[None, :]) & 1
        column = word[:, None] * WORD + tl.arange(0, WORD)[None, :]
        refused = (allowed == 0) & (column < vocab)  # bits beyond the vocabulary say nothing
        tl.store(scores + row * stride + column, float("-inf"), mask=refused)


@lru_cache
def _variant() -> Variant:
    pointers = {"scores": "*fp32", "words": "*i32", "rows": "*i32"}
    return Variant(
        name="bitmask",
        kernel=bitmask_kernel,
        types=pointers | dict.fromkeys(("vocab", "stride", "words_stride"), "i32"),
        constants={"BLOCK": _BLOCK},
        aligned=frozenset(),
        num_warps=4,
        num_stages=1,
    )


def variants() -> list[Variant]:
    """What is compiled ahead of time."""
    return [_variant()]


def apply_bitmask(scores: Tensor, words: Tensor, rows: Tensor) -> None:
    """Set what the masks refuse to −inf, in place.

    Args:
        scores: float32 [R, V].
        words: int32 [N, at least ⌈V / 32⌉]: bit t % 32 of word t // 32 allows token t.
        rows: int32 [N]: the row of `scores` of each mask; −1 where there is none.
    """
    vocab = scores.shape[1]
    assert words.shape[0] == len(rows)
    assert words.shape[1] * WORD.value >= vocab
    assert scores.stride(1) == words.stride(1) == 1
    launch(
        _variant(),
        (len(rows), triton.cdiv(vocab, _BLOCK)),
        scores=scores,
        words=words,
        rows=rows,
        vocab=vocab,
        stride=scores.stride(0),
        words_stride=words.stride(0),
    )
