"""Logprobs where the logits are: of one token in each row, and of the likeliest beside it.

The same as `branchline.runtime.sampling.token_logprobs` up to rounding, but as tensors, so that
nothing waits for the device.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

_CHUNK = 64  # rows in one pass: the temporaries of `_rank` are several times their logits


class DeviceLogprobs(NamedTuple):
    """Of M rows; a NaN counts as impossible, what is impossible has −inf."""

    chosen: Tensor  # float32 [M]
    top: Tensor  # float32 [M, N], descending
    top_ids: Tensor  # int64 [M, N], ties by the lowest id


def device_logprobs(logits: Tensor, targets: Tensor, top: int) -> DeviceLogprobs:
    """The logprobs of one token in each row and of its `top` likeliest.

    Args:
        logits: float32 [M, V], unmodified.
        targets: int64 [M].
        top: N; at most V are given.
    """
    parts = [
        _of_chunk(rows, ids, min(top, logits.shape[-1]))
        for rows, ids in zip(torch.split(logits, _CHUNK), torch.split(targets, _CHUNK), strict=True)
    ]
    return DeviceLogprobs(*(torch.cat(columns) for columns in zip(*parts, strict=True)))


def _of_chunk(logits: Tensor, targets: Tensor, top: int) -> DeviceLogprobs:
    logits = torch.where(logits.isnan(), -torch.inf, logits)
    whole = logits.logsumexp(-1, keepdim=True)
    ids = _rank(logits, top)
    return DeviceLogprobs(
        _shifted(logits.gather(-1, targets[:, None]), whole)[:, 0],
        _shifted(logits.gather(-1, ids), whole),
        ids,
    )


def _shifted(logits: Tensor, whole: Tensor) -> Tensor:
    logprobs = logits - whole
    return torch.where(logprobs.isnan(), -torch.inf, logprobs)


def _rank(logits: Tensor, count: int) -> Tensor:
    """The ids of the highest logits, int64 [M, count].

    Torch's topk leaves ties to chance. Here no two keys tie: an int64 holds the logit's bits, in
    the order of their values, above the id, in the opposite order.
    """
    if count == 0:
        return torch.empty((len(logits), 0), dtype=torch.int64, device=logits.device)
    bits = (logits + 0.0).view(torch.int32)  # −0 + 0 is 0
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long()
    ids = torch.arange(logits.shape[-1], device=logits.device)
    keys = (ordered << 32) | (0x7FFFFFFF - ids)
    return 0x7FFFFFFF - (keys.topk(count, dim=-1).values & 0x7FFFFFFF)
