"""The step that both attention kernels are made of: one block of K and V into a running softmax."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def attend(
    q,
    k_pool,
    v_pool,
    pages,
    visible,
    scale,
    highest,
    total,
    acc,
    KV_HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    MASKED: tl.constexpr,
    F32DOT: tl.constexpr,
):
    """Queries q [M, SIZE] over the K and V of `pages` [N]; the new (highest, total, acc).

    `highest` [M] is the largest score so far, `total` [M] the sum of 2^(score − highest), `acc`
    [M, SIZE] that of 2^(score − highest) · v. `scale` has the softmax's scale and log2(e) in it;
    both pools point to the head of K and V. With MASKED, a page counts only where `visible`
    [M, N]: a score of −inf, below the −1e30 that `highest` starts from, adds exactly nothing even
    where a query sees no page of the block. All pages are read, so none may hold a NaN.
    """
    pages = pages.to(tl.int64)
    d = tl.arange(0, SIZE)
    k = tl.load(k_pool + pages[None, :] * (KV_HEADS * SIZE) + d[:, None])  # transposed: [SIZE, N]
    v = tl.load(v_pool + pages[:, None] * (KV_HEADS * SIZE) + d[None, :])
    if F32DOT:
        k = k.to(tl.float32)
        v = v.to(tl.float32)
    scores = tl.dot(q, k, input_precision="ieee") * scale  # float32 is not to become tf32
    if MASKED:
        scores = tl.where(visible, scores, float("-inf"))
    higher = tl.maximum(highest, tl.max(scores, 1))
    shrink = tl.exp2(highest - higher)
    weights = tl.exp2(scores - higher[:, None])
    total = total * shrink + tl.sum(weights, 1)
    acc = acc * shrink[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
    return higher, total, acc
