"""What the device knows by slot, and the step that it computes."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np
import torch

from branchline.runtime.batch import FROM_DEVICE
from branchline.runtime.models.inputs import Tokens

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from branchline.runtime.batch import Batch
    from branchline.runtime.memory import Patch

NO_SLOT = -1  # of a padding draw: nothing is stored
_ALIGNMENT = 16  # of the page table's rows, for wide loads


class Field(IntEnum):
    """The rows of the step table: of each token, of each row of logits, of each draw.

    Those rows of logits that are drawn from come first, in the order of the draws.
    """

    SLOT = 0
    # These two count up together while the same rows go on.
    POSITION = 1
    DRAW_POSITION = 2
    INPUT_ID = 3  # FROM_DEVICE: the slot's last token
    WRITES = 4  # 0: a token that writes no page
    GROWS = 5  # 1: a decode, one further with the next step
    LOGIT = 6  # the token whose logits are wanted
    DRAW_SLOT = 7


class Tables:
    """Tensors that stay where they are, so that graphs can read and write them.

    A batch is padded with tokens of a slot that no request has: its pages are all the padding page.
    """

    def __init__(self, slots: int, max_context: int, tokens: int, device: torch.device) -> None:
        """For requests in `slots` slots and steps of up to `tokens` tokens."""
        width = -(-max_context // _ALIGNMENT) * _ALIGNMENT
        self.padding_slot = slots
        self.most_tokens = tokens
        # int32 [slots + 1, >= max_context]: the page of each position
        self.page_table = torch.zeros((slots + 1, width), dtype=torch.int32, device=device)
        # int64 [slots + 1]: what was drawn last for each slot
        self.last_token = torch.zeros(slots + 1, dtype=torch.int64, device=device)
        # int64 [fields, tokens]: the step, see `Field`
        self._step = torch.zeros((len(Field), tokens), dtype=torch.int64, device=device)

    def load(self, words: Tensor, count: int) -> None:
        """Take in a step of `count` tokens, int32 [fields · count], made by `step_words`."""
        self._step[:, :count].copy_(words.view(-1, count))

    def patch(self, cells: Tensor, pages: Tensor) -> None:
        """Change the page table: int32 [n] each, places in the flat table and their pages."""
        self.page_table.view(-1).index_copy_(0, cells.long(), pages)

    def tokens(self, count: int, logits: int) -> Tokens:
        """The step's tokens, `count` of them with padding, and `logits` rows of logits."""
        slots, positions = self._step[Field.SLOT, :count], self._step[Field.POSITION, :count]
        given = self._step[Field.INPUT_ID, :count]
        pages = self.page_table[slots, positions] * self._step[Field.WRITES, :count]
        return Tokens(
            input_ids=torch.where(given == FROM_DEVICE, self.last_token[slots], given),
            positions=positions,
            write_pages=pages,
            logit_rows=self._step[Field.LOGIT, :logits],
        )

    def draws(self, count: int) -> tuple[Tensor, Tensor]:
        """Slot and position of each draw, int64 [count]."""
        return self._step[Field.DRAW_SLOT, :count], self._step[Field.DRAW_POSITION, :count]

    def advance(self, count: int) -> None:
        """Make the step the next one of the same rows: each one further, ids as drawn."""
        positions = self._step[Field.POSITION : Field.DRAW_POSITION + 1, :count]
        positions += self._step[Field.GROWS, :count]
        self._step[Field.INPUT_ID, :count].fill_(FROM_DEVICE)


def step_words(batch: Batch, count: int, padding_slot: int) -> np.ndarray:
    """A batch as `Tables.load` takes it, padded to `count` tokens: int32 [fields · count]."""
    words = np.zeros((len(Field), count), dtype=np.int32)
    tokens, logits = len(batch.input_ids), len(batch.logit_rows)
    words[Field.SLOT] = padding_slot
    words[Field.SLOT, :tokens] = batch.token_slots
    words[Field.POSITION, :tokens] = batch.positions
    words[Field.INPUT_ID, :tokens] = batch.input_ids
    words[Field.WRITES, :tokens] = batch.write_pages != 0
    counts = np.diff(batch.q_indptr)
    words[Field.GROWS, :tokens] = np.repeat(counts == 1, counts)
    words[Field.LOGIT, :logits] = batch.logit_rows[drawn_first(batch)]
    drawn = [row for row in batch.rows if row.samples]
    words[Field.DRAW_SLOT] = NO_SLOT
    words[Field.DRAW_SLOT, : len(drawn)] = [row.slot for row in drawn]
    words[Field.DRAW_POSITION, : len(drawn)] = [row.end for row in drawn]
    return words.reshape(-1)


def drawn_first(batch: Batch) -> np.ndarray:
    """The batch's rows of logits in the order of the step table, int64 [M]."""
    ends = np.cumsum([row.logprob_count + row.samples for row in batch.rows])
    drawn = ends[[row.samples for row in batch.rows]] - 1
    return np.concatenate([drawn, np.delete(np.arange(len(batch.logit_rows)), drawn)])


def patch_words(patches: Sequence[Patch], width: int) -> tuple[np.ndarray, np.ndarray]:
    """Patches as `Tables.patch` takes them, for rows of `width` positions.

    A slot that changes hands may be patched twice; the device writes in no order, so here the last
    one wins.
    """
    empty = np.empty(0, dtype=np.int32)
    starts = [patch.slot * width + patch.start for patch in patches]
    runs = [
        np.arange(start, start + len(patch.pages), dtype=np.int32)
        for start, patch in zip(starts, patches, strict=True)
    ]
    cells, pages = (
        np.concatenate([empty, *runs]),
        np.concatenate([empty, *(p.pages for p in patches)]),
    )
    if len({patch.slot for patch in patches}) < len(patches):
        cells, last = np.unique(cells[::-1], return_index=True)
        pages = pages[::-1][last]
    return cells, pages
