"""What one forward pass takes, and what the loop may ask of a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from branchline.kernels import Segment


@dataclass(frozen=True, slots=True)
class Tokens:
    """T tokens to compute, as tensors on the model's device."""

    input_ids: Tensor  # int64 [T]
    positions: Tensor  # int64 [T]
    write_pages: Tensor  # int64 [T]; 0 where a token is recomputed for its logits only
    logit_rows: Tensor  # int64 [M]: the tokens whose logits are wanted


@dataclass(frozen=True, slots=True)
class ForwardInputs(Tokens):
    """A batch: T tokens of R rows, in the order of the rows; one row is one request.

    Row r's tokens are the last `q_indptr[r + 1] - q_indptr[r]` of its `kv_lens[r]` positions. A row
    may read pages that another row of the same batch writes.
    """

    q_indptr: list[int]  # [R + 1]
    kv_lens: list[int]  # [R]
    page_table: Tensor  # int32 or int64 [slots, >= max(kv_lens)]: the page of each position
    slots: list[int]  # [R]: the rows' places in the page table
    segments: Sequence[Segment] = ()  # what rows share, to be read once


class Model(Protocol):
    """A causal language model over a pool of pages; page 0 is padding."""

    vocab_size: int
    context_length: int
    page_bytes: int  # the K and V of one token in all layers
    segment_cost: int  # of its kernels: what a shared segment must save

    def allocate(self, pages: int) -> None:
        """Make the pool of `pages` pages, page 0 included; what it held before is lost."""

    def forward(self, inputs: ForwardInputs) -> Tensor:
        """Write the tokens' K and V to their pages; float32 logits [M, vocab_size].

        The next forward may overwrite them.
        """


class PlannedModel(Model, Protocol):
    """A model whose attention can be planned apart: what is captured in a graph needs that."""

    def compute(self, tokens: Tokens, plan: Any) -> Tensor:
        """`forward` of tokens whose attention is planned; a token of no row is padding."""
