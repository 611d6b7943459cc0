"""How large everything is: on a device as in the protocol, on a CPU as small as it gets."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from branchline.kernels.triton.tile_shapes import Heads
from branchline.runtime.models.config import DecoderConfig
from branchline.runtime.models.rope import RopeConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """The sizes of a run."""

    model: DecoderConfig
    small_model: DecoderConfig  # of the offline workload
    dtype: torch.dtype
    buckets: tuple[int, ...] | None  # of graphs; None: all that are shipped
    running: int  # requests at most
    batch_tokens: int  # of one step at most
    pages: int
    small_pages: int
    context: int
    # Attention: rows × positions; what is shared; new and cached tokens; tokens of a prompt.
    attention: tuple[tuple[int, int], ...]
    cascade: tuple[tuple[int, int, int], ...]
    short_extend: tuple[int, int]
    long_extend: int
    pool_bytes: int  # that the pools of one timing have at least, to be larger than any cache
    linear_tokens: tuple[int, ...]
    sampler_rows: tuple[int, ...]
    sampler_vocab: int
    # The engine.
    decode: tuple[tuple[int, int], ...]
    warm: int  # steps before those that are timed
    timed: int
    prefill: tuple[tuple[int, int], ...]  # tokens, times
    prefill_chunk: int
    hit: tuple[int, int, int]  # cached, new, times
    beside: tuple[int, int]  # decodes beside a hit: rows, positions
    shared: tuple[tuple[int, int, int], ...]  # rows, shared, own
    fork: tuple[int, int, int]  # prompts, ways, positions of a prompt
    select: tuple[int, int, int]  # choices, their tokens, positions of the prompt
    offline: tuple[int, int, int]  # requests, tokens of a prompt or an output from … to

    @property
    def heads(self) -> Heads:
        """What attention is timed for."""
        model = self.model
        group = model.heads // model.kv_heads
        return Heads(model.kv_heads, group, model.head_dim, self.dtype)


LLAMA_3_8B = DecoderConfig(
    architecture="llama",
    vocab_size=128256,
    context_length=34816,  # longer than Llama 3's, for the longest prompt here
    hidden_size=4096,
    intermediate_size=14336,
    layers=32,
    heads=32,
    kv_heads=8,
    head_dim=128,
    norm_eps=1e-5,
    rope=RopeConfig(500000.0),
    tied=False,
)
QWEN_3_06B = DecoderConfig(
    architecture="qwen3",
    vocab_size=151936,
    context_length=4096,
    hidden_size=1024,
    intermediate_size=3072,
    layers=28,
    heads=16,
    kv_heads=8,
    head_dim=128,
    norm_eps=1e-6,
    rope=RopeConfig(1000000.0),
    tied=True,
    qk_norm=True,
)
ON_DEVICE = Scale(
    model=LLAMA_3_8B,
    small_model=QWEN_3_06B,
    dtype=torch.bfloat16,
    buckets=None,
    running=256,
    batch_tokens=32768,
    pages=600_000,
    small_pages=400_000,
    context=33_792,
    attention=(
        *((rows, context) for context in (1024, 2048) for rows in (1, 8, 32, 64, 256)),
        (1, 32768),
        (8, 32768),
    ),
    cascade=tuple((rows, shared, 64) for shared in (1024, 5920) for rows in (8, 32, 64)),
    short_extend=(17, 5920),
    long_extend=8192,
    pool_bytes=2**29,
    linear_tokens=(1, 8, 16, 32, 64, 128, 256),
    sampler_rows=(1, 64, 256),
    sampler_vocab=128256,
    decode=tuple((rows, context) for context in (1024, 2048) for rows in (1, 8, 32, 64, 256)),
    warm=20,
    timed=60,
    prefill=((2048, 10), (8192, 5), (32768, 3)),
    prefill_chunk=2048,
    hit=(5920, 17, 50),
    beside=(32, 1024),
    shared=((32, 5920, 64), (64, 5920, 64), (8, 5920, 64), (64, 2048, 256)),
    fork=(8, 4, 1024),
    select=(8, 16, 5920),
    offline=(256, 100, 1024),
)
TINY = replace(
    LLAMA_3_8B,
    vocab_size=128,
    context_length=512,
    hidden_size=64,
    intermediate_size=96,
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=16,
)
ON_CPU = Scale(
    model=TINY,
    small_model=replace(TINY, qk_norm=True, tied=True),
    dtype=torch.float32,
    buckets=(1, 2, 4, 8, 16),
    running=4,
    batch_tokens=160,
    pages=1000,
    small_pages=300,
    context=256,
    attention=((1, 70), (3, 33)),
    cascade=((3, 66, 5),),
    short_extend=(3, 70),
    long_extend=128,
    pool_bytes=0,
    linear_tokens=(1, 8),
    sampler_rows=(2,),
    sampler_vocab=1000,
    decode=((1, 32), (3, 70)),
    warm=1,
    timed=2,
    prefill=((24, 1),),
    prefill_chunk=16,
    hit=(66, 3, 1),
    beside=(2, 20),
    shared=((2, 66, 4),),
    fork=(1, 2, 20),
    select=(2, 2, 40),
    offline=(4, 3, 9),
)
