"""Draws on the device, captured apart from the forwards: what grammars allow comes between."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import torch

from branchline.runtime.cuda.graphs import bucket_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch import Tensor

    from branchline.runtime.cuda.graphs import Graph, Graphs
    from branchline.runtime.cuda.tables import Tables
    from branchline.runtime.sampling import SampleRow


class Sampler(Protocol):
    """Draws by parameters that it keeps by slot; `branchline.runtime.sampling.device` has one.

    A mode says what a step's rows need. Modes combine with `|`; more than is needed does no harm.
    """

    def mode(self, slots: Iterable[int]) -> Any:
        """What a step with these slots needs."""

    def pack(self, slots: Sequence[int], rows: Sequence[SampleRow]) -> Any:
        """Slots that begin to draw, or go on after a retraction; `words` of it go to the device."""

    def apply(self, patch: Any, words: Tensor) -> None:
        """Take in what `pack` made, int32 on the device."""

    def mask(self, logits: Tensor, masks: Tensor, rows: Tensor) -> None:
        """Make impossible in place what masks, int32 [N, words], refuse in rows, int32 [N]."""

    def sample(self, logits: Tensor, slots: Tensor, positions: Tensor, mode: Any) -> Tensor:
        """Draw a token for each row, int64 [R], and write it to the slot's last token."""


class Draws:
    """Draws from the first logits that a forward left, for the slots of the step's table."""

    def __init__(self, sampler: Sampler, tables: Tables, logits: Tensor) -> None:
        """From `logits`, float32 [draws, vocab]."""
        self.sampler = sampler
        self._tables = tables
        self._logits = logits
        # int64 [draws]: the captured draws' results
        self._ids = torch.zeros(len(logits), dtype=torch.int64, device=logits.device)
        self._graphs: dict[tuple[int, Any], Graph] = {}
        self._buckets: tuple[int, ...] = ()
        self._modes: tuple[Any, ...] = ()

    def capture(self, graphs: Graphs, buckets: Sequence[int], modes: Sequence[Any]) -> None:
        """Capture the sizes of `buckets` in each of `modes`; those are in ascending order."""
        self._warm_masks()
        self._buckets, self._modes = tuple(sorted(buckets)), tuple(modes)
        for count in reversed(self._buckets):
            for mode in reversed(self._modes):
                self._graphs[count, mode] = graphs.capture(self._captured(count, mode))

    def _warm_masks(self) -> None:
        """Compile their kernel now, not beside the first request that has one; no row is masked."""
        words = -(-self._logits.shape[1] // 32)
        masks = torch.zeros((1, words), dtype=torch.int32, device=self._logits.device)
        self.mask(masks, torch.full((1,), -1, dtype=torch.int32, device=self._logits.device))

    def run(self, slots: Sequence[int]) -> Tensor:
        """Launch the draws of these slots; their ids, int64, until the next draws."""
        if not slots:
            return self._ids[:0]
        count, wanted = len(slots), self.sampler.mode(slots)
        bucket = bucket_of(count, self._buckets)
        mode = next((mode for mode in self._modes if mode | wanted == mode), None)
        if bucket is None or mode is None:
            self._draw(count, wanted)
        else:
            self._graphs[bucket, mode].replay()
        return self._ids[:count]

    def mask(self, masks: Tensor, draws: Tensor) -> None:
        """Let the next draws, those numbered int32 [N], take what masks, int32 [N, words], allow.

        Before bias and penalties, which is the same as after: they leave −inf as it is. So the
        draws that were captured serve here too.
        """
        self.sampler.mask(self._logits, masks, draws)

    def _captured(self, count: int, mode: Any) -> Callable[[], None]:
        return lambda: self._draw(count, mode)

    def _draw(self, count: int, mode: Any) -> None:
        slots, positions = self._tables.draws(count)
        self._ids[:count] = self.sampler.sample(self._logits[:count], slots, positions, mode)
