"""Rotary position embedding, fused with writing K and V to their pages."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from branchline.kernels.triton.launch import launch
from branchline.kernels.triton.variant import Variant, pointer, type_name

if TYPE_CHECKING:
    from torch import Tensor

BLOCK_HEADS = 8  # heads of a program: few, so that one token keeps several programs busy
# What is compiled ahead of time: heads, heads of K and V, head size of SmolLM2, Llama 3 8B and
# Gemma 2B, whose single head of K and V leaves most of a block empty.
SHAPES = (
    (9, 3, 64, torch.bfloat16),
    (32, 8, 128, torch.bfloat16),
    (32, 8, 128, torch.float16),
    (8, 1, 256, torch.bfloat16),
)


@triton.jit
def _rotate(source, target, cos, sin, inside, HALF: tl.constexpr):
    """Rotate heads by their pairs (x[i], x[i + HALF]); both arguments point to the first halves."""
    first = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(source + HALF, mask=inside, other=0.0).to(tl.float32)
    dtype = target.dtype.element_ty
    tl.store(target, (first * cos - second * sin).to(dtype), mask=inside)
    tl.store(target + HALF, (second * cos + first * sin).to(dtype), mask=inside)


@triton.jit
def rope_and_write_kernel(
    q,
    k,
    v,
    cos_sin,
    positions,
    pages,
    q_out,
    k_pool,
    v_pool,
    q_stride,
    k_stride,
    v_stride,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A program has a token (axis 0) and either BLOCK heads of q, or BLOCK heads of k and of v.

    The blocks of q come first (axis 1). A token of page 0 is written nowhere: it is padding, or
    computed once more for its logits only, and its K and V are in the pool already.
    """
    token = tl.program_id(0).to(tl.int64)
    q_blocks: tl.constexpr = (HEADS + BLOCK - 1) // BLOCK
    block = tl.program_id(1)
    half: tl.constexpr = SIZE // 2
    row = tl.arange(0, BLOCK)[:, None]
    pair = tl.arange(0, half)[None, :]
    # Read once for each head, in the layout of the heads: wide loads, and no exchange of threads.
    angles = cos_sin + tl.load(positions + token) * SIZE + 0 * row + pair
    cos = tl.load(angles)
    sin = tl.load(angles + half)
    if block < q_blocks:
        head = block * BLOCK + row
        offset = head * SIZE + pair
        inside = head < HEADS
        _rotate(
            q + token * q_stride + offset,
            q_out + token * HEADS * SIZE + offset,
            cos,
            sin,
            inside,
            half,
        )
    else:
        page = tl.load(pages + token).to(tl.int64)
        if page != 0:
            head = (block - q_blocks) * BLOCK + row
            offset = head * SIZE + pair
            inside = head < KV_HEADS
            there = page * KV_HEADS * SIZE
            _rotate(k + token * k_stride + offset, k_pool + there + offset, cos, sin, inside, half)
            whole = head * SIZE + tl.arange(0, SIZE)[None, :]
            values = tl.load(v + token * v_stride + whole, mask=inside, other=0.0)
            tl.store(v_pool + there + whole, values.to(v_pool.dtype.element_ty), mask=inside)


@lru_cache
def rope_variant(heads: int, kv_heads: int, size: int, dtype: torch.dtype) -> Variant:
    """The kernel for `heads` heads of q and `kv_heads` of k and v, of `size` elements each."""
    elements = dict.fromkeys(("q", "k", "v", "q_out", "k_pool", "v_pool"), pointer(dtype))
    strides = dict.fromkeys(("q_stride", "k_stride", "v_stride"), "i32")
    return Variant(
        name=f"rope_and_write {type_name(dtype)} h{heads}/{kv_heads} d{size}",
        kernel=rope_and_write_kernel,
        types=elements | strides | {"cos_sin": "*fp32", "positions": "*i64", "pages": "*i64"},
        constants={"HEADS": heads, "KV_HEADS": kv_heads, "SIZE": size, "BLOCK": BLOCK_HEADS},
        aligned=frozenset(strides),
        num_warps=max(1, BLOCK_HEADS * size // 2 // (32 * 8)),  # 16 bytes of each half a thread
        num_stages=1,
        wide_loads=9,  # q: 2, k: 2, v: 1 or 2, cosines and sines in float32: 2 each
    )


def variants() -> list[Variant]:
    """What is compiled ahead of time."""
    return [rope_variant(*shape) for shape in SHAPES]


def rope_and_write(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos_sin: Tensor,
    positions: Tensor,
    pages: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
) -> Tensor:
    """Rotate q and k by their positions, write k and v to their pages but 0; the rotated q, dense.

    Shapes and types are `KernelSet`'s: q [T, H, D], k and v [T, Hkv, D], `cos_sin` float32
    [positions, D], `positions` and `pages` int64 [T], pools [pages, Hkv, D]. The heads of a token
    are dense; the strides of tokens are multiples of 16. D is a power of two.
    """
    tokens, heads, size = q.shape
    kv_heads = k.shape[1]
    assert all(one.stride()[1:] == (size, 1) for one in (q, k, v))
    assert all(one.is_contiguous() for one in (cos_sin, positions, pages, k_pool, v_pool))
    assert k_pool.shape[1:] == v_pool.shape[1:] == (kv_heads, size)
    out = torch.empty((tokens, heads, size), dtype=q.dtype, device=q.device)
    blocks = triton.cdiv(heads, BLOCK_HEADS) + triton.cdiv(kv_heads, BLOCK_HEADS)
    launch(
        rope_variant(heads, kv_heads, size, q.dtype),
        (tokens, blocks),
        q=q,
        k=k,
        v=v,
        cos_sin=cos_sin,
        positions=positions,
        pages=pages,
        q_out=out,
        k_pool=k_pool,
        v_pool=v_pool,
        q_stride=q.stride(0),
        k_stride=k.stride(0),
        v_stride=v.stride(0),
    )
    return out
