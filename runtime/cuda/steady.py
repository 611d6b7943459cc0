"""Which steps need nothing of the host: the same rows as before, each one token longer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from branchline.runtime.batch import FROM_DEVICE

if TYPE_CHECKING:
    from branchline.runtime.batch import Batch, Row


class Steady:
    """Remembers the step that the device's tables hold."""

    def __init__(self) -> None:
        self._batch: Batch | None = None
        self._steps = 0  # that the attention plan can still grow by

    def loaded(self, batch: Batch, steps: int) -> None:
        """The tables hold this batch; its plan can grow by so many steps."""
        self._batch, self._steps = batch, steps

    def continues(self, batch: Batch) -> bool:
        """Whether the tables become this batch when they advance; they then count as it."""
        before = self._batch
        if before is None or not self._steps or not _follows(before, batch):
            return False
        self.loaded(batch, self._steps - 1)
        return True


def _follows(before: Batch, batch: Batch) -> bool:
    return (
        len(before.rows) == len(batch.rows)
        and before.segments == batch.segments
        and bool((batch.input_ids == FROM_DEVICE).all())
        and all(map(_row_follows, before.rows, batch.rows))
    )


def _row_follows(before: Row, row: Row) -> bool:
    """Whether a row is the next token of a row of one token that wrote its page."""
    return (
        row.request is before.request
        and row.slot == before.slot
        and before.samples
        and before.end == before.start + 1
        and before.cached_len <= before.start
        and row.start == before.end
        and row.end == before.end + 1
    )
