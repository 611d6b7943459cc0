"""The sampler of the CUDA device: parameters live there by slot, a step needs nothing of the host.

It draws what `branchline.runtime.sampling.sample` draws, roundings at the boundaries aside. What it
draws it also counts, so penalties are current without the host having seen the token. Nothing here
waits for the device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from branchline.kernels.triton import sampler_table as table
from branchline.kernels.triton.bitmask import apply_bitmask
from branchline.kernels.triton.penalties import adjust
from branchline.kernels.triton.sample import sample_scores
from branchline.kernels.triton.workspace import Workspace
from branchline.runtime.sampling.slot_rows import ROW, pack_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from branchline.runtime.sampling.rows import SampleRow
    from branchline.runtime.sampling.slot_rows import SlotRows
    from branchline.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class Mode:
    """What a step must be able to do; the kernels it takes, and so the graph, follow from it."""

    draws: bool = False  # some row may not be greedy
    cuts: bool = False  # some row may have top-k or top-p
    adjusts: bool = False  # some row may have a bias, penalties or min_tokens

    @classmethod
    def of(cls, params: SamplingParams) -> Mode:
        """What the rows of one request need, as long as it runs."""
        return cls(
            draws=not params.greedy,
            cuts=not params.greedy and (params.top_k != -1 or params.top_p < 1.0),
            adjusts=bool(params.logit_bias) or params.has_penalties or params.min_tokens > 0,
        )

    def __or__(self, other: Mode) -> Mode:
        return Mode(
            self.draws or other.draws, self.cuts or other.cuts, self.adjusts or other.adjusts
        )


class DeviceSampler:
    """Chooses tokens for the rows of up to `slots` slots.

    A slot that was never set is greedy: the runner pads a batch with such a slot, or with −1.
    """

    def __init__(
        self,
        slots: int,
        vocab: int,
        device: torch.device,
        last_token: Tensor,
        *,
        rows: int | None = None,
    ) -> None:
        """Batches have at most `rows` rows (default: one for each slot), padding included.

        `last_token` is the runner's int64 [slots]; each draw is written there.
        """
        assert last_token.shape == (slots,)
        assert last_token.dtype == torch.int64
        self._vocab = vocab
        self._last_token = last_token
        self._modes = [Mode()] * slots
        self._table = torch.zeros((slots, ROW), dtype=torch.int32, device=device)
        self._table[:, table.FLAGS.value] = table.GREEDY.value
        self._marks = torch.zeros((slots, vocab), dtype=torch.int32, device=device)
        self._bias = torch.zeros((slots, vocab), dtype=torch.float32, device=device)
        self._work = Workspace.empty(slots if rows is None else rows, vocab, device)

    def mode(self, slots: Iterable[int]) -> Mode:
        """What a step with these slots needs."""
        mode = Mode()
        for slot in slots:
            mode |= self._modes[slot]
        return mode

    def set_rows(self, slots: Sequence[int], rows: Sequence[SampleRow]) -> None:
        """Set slots to their requests, each as before the next draw; again after a retraction."""
        patch = self.pack(slots, rows)
        words = torch.from_numpy(patch.words).to(self._table.device, non_blocking=True)
        self.apply(patch, words)

    def pack(self, slots: Sequence[int], rows: Sequence[SampleRow]) -> SlotRows:
        """The host's half of `set_rows`: one buffer, to be copied with whatever else changes."""
        patch = pack_rows(slots, rows, self._vocab)
        for slot, row in zip(slots, rows, strict=True):
            self._modes[slot] = Mode.of(row.params)
        return patch

    def apply(self, patch: SlotRows, words: Tensor) -> None:
        """The device's half: `words` is the patch's buffer as it arrived, int32 on the device."""
        sizes = patch.sizes
        assert len(words) == sizes.words
        cells = (3 * sizes.prompt, 3 * sizes.added, 3 * sizes.bias)
        slots, parameters, marked, biased, prompt, added, bias = torch.split(
            words, [sizes.rows, sizes.rows * ROW, sizes.marked, sizes.biased, *cells]
        )
        self._table.index_copy_(0, slots.long(), parameters.view(-1, ROW))
        if sizes.marked:
            self._marks.index_fill_(0, marked.long(), 0)
        if sizes.biased:
            self._bias.index_fill_(0, biased.long(), 0.0)
        if sizes.prompt:  # first: it may name a token twice
            self._marks.view(-1).scatter_(0, *self._cells(prompt))
        if sizes.added:
            self._marks.view(-1).scatter_add_(0, *self._cells(added))
        if sizes.bias:
            at, values = self._cells(bias)
            self._bias.view(-1).scatter_(0, at, values.view(torch.float32))

    def _cells(self, columns: Tensor) -> tuple[Tensor, Tensor]:
        """Where in a flat table the cells are (int64), and their words."""
        slots, ids, words = columns.view(3, -1)
        return slots.long() * self._vocab + ids, words

    def mask(self, logits: Tensor, masks: Tensor, rows: Tensor) -> None:
        """Make impossible in place what grammars refuse: see `apply_bitmask`.

        Bias and penalties, which come later here, leave it so.
        """
        apply_bitmask(logits, masks, rows)

    def sample(
        self,
        logits: Tensor,
        slots: Tensor,
        positions: Tensor,
        mode: Mode,
    ) -> Tensor:
        """Draw the next token of each row, int64 [R], and write it to `last_token` of its slot.

        Args:
            logits: float32 [R, V]; not changed.
            slots: int64 [R], different ones, padding aside.
            positions: int64 [R], of the token to draw, in prompt and output.
            mode: `mode` of the slots, or more.
        """
        scores = logits
        if mode.adjusts:
            scores = torch.empty_like(logits)
            adjust(logits, scores, slots, positions, self._table, self._marks, self._bias)
        return sample_scores(
            scores,
            slots,
            positions,
            self._table,
            self._marks,
            self._last_token,
            self._work,
            draws=mode.draws,
            cut=mode.cuts,
        )
