"""What the sampler is told of each row, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from branchline.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class SampleRow:
    """One token to choose: all the choice depends on, besides the logits."""

    params: SamplingParams
    seed: int  # below 2**64
    position: int  # of the token to choose, in prompt and output
    output_len: int  # tokens generated so far
    stop_ids: tuple[int, ...] = ()  # masked while output_len is below min_tokens
    prompt_ids: NDArray[np.integer] | None = None  # any order; where repetition_penalty is not 1
    output_ids: NDArray[np.integer] | None = None  # all output_len of them; where has_penalties
    # What a grammar allows, int32 words: token i is bit i % 32 of word i // 32. None: no grammar
    mask: NDArray[np.int32] | None = None

    @property
    def masks_stops(self) -> bool:
        """Whether it is too early for a stop id."""
        return self.output_len < self.params.min_tokens and bool(self.stop_ids)


@dataclass(frozen=True, slots=True)
class Sampled:
    """The tokens of one step, in the order of the rows."""

    ids: Tensor  # int64 [R]
