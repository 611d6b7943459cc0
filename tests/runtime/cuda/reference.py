"""The parts of a device that are not the runner's, in plain torch: its logic without Triton."""

from __future__ import annotations

import numpy as np
import torch

from branchline.runtime.cuda.tables import NO_SLOT


class Plan:
    """`ReferencePlan` in a fixed buffer: rows, then each row's end in the batch, length, slot."""

    segments = ()

    def __init__(self, page_table: torch.Tensor, tokens: int) -> None:
        self.page_table = page_table
        self._words = np.zeros(3 * tokens + 1, np.int32)

    def load(self, words: torch.Tensor) -> None:
        torch.from_numpy(self._words)[: len(words)].copy_(words)

    def grow(self) -> None:
        self._rows[1] += 1

    @property
    def _rows(self) -> np.ndarray:
        count = self._words[0]
        return self._words[1 : 1 + 3 * count].reshape(3, count)

    @property
    def q_indptr(self) -> list[int]:
        return [0, *self._rows[0].tolist()]

    @property
    def kv_lens(self) -> list[int]:
        return self._rows[1].tolist()

    @property
    def slots(self) -> list[int]:
        return self._rows[2].tolist()


class Planner:
    """Plans that can grow `steps` times."""

    def __init__(self, page_table: torch.Tensor, steps: int) -> None:
        self._page_table = page_table
        self._steps = steps

    def empty(self, tokens: int) -> Plan:
        return Plan(self._page_table, tokens)

    def pack(self, batch, tokens: int) -> tuple[np.ndarray, int]:
        assert len(batch.input_ids) <= tokens
        slots = [row.slot for row in batch.rows]
        rows = [len(slots), *batch.q_indptr[1:], *batch.kv_lens, *slots]
        return np.array(rows, np.int32), self._steps


class GreedySampler:
    """The highest logit of each row; modes are numbers, of which it needs the first."""

    def __init__(self, last_token: torch.Tensor) -> None:
        self._last_token = last_token
        self.slots: list[int] = []  # as they were set

    def mode(self, slots) -> int:
        assert NO_SLOT not in slots
        return 1

    def pack(self, slots, rows) -> Words:
        assert all(row.params.greedy for row in rows)
        self.slots += slots
        return Words(np.array(slots, np.int32))

    def apply(self, patch: Words, words: torch.Tensor) -> None:
        assert len(words) == len(patch.words)

    def mask(self, logits, masks, rows) -> None:
        bits = np.unpackbits(masks.contiguous().numpy().view(np.uint8), axis=-1, bitorder="little")
        for refused, row in zip(bits[:, : logits.shape[1]] == 0, rows.tolist(), strict=True):
            if row >= 0:
                logits[row].masked_fill_(torch.from_numpy(refused), -torch.inf)

    def sample(self, logits, slots, positions, mode) -> torch.Tensor:
        ids = logits.argmax(-1)
        self._last_token.index_copy_(0, slots % len(self._last_token), ids)
        return ids


class Words:
    def __init__(self, words: np.ndarray) -> None:
        self.words = words
