"""What a grammar promises the loop: the tokens that may come next, and those that must.

A `CompiledGrammar` is immutable and shared by all requests that use it; a `Matcher` is where one
request stands in it. Masks are int32 words, token i is bit i % 32 of word i // 32, 1 allows it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np


class Matcher(Protocol):
    """A position in a grammar. Only the engine thread touches it, and never for long.

    What shows only while a grammar runs, as a limit that it exceeds or a text that nothing can
    complete, is an InvalidRequest of `complete`, `fill_mask`, `advance` or `forced`: the matcher is
    of no use after it, and nothing else is disturbed.
    """

    @property
    def accepting(self) -> bool:
        """Whether the output may end here."""
        ...

    @property
    def complete(self) -> bool:
        """Whether it must: it may end here, and nothing can follow."""
        ...

    def fill_mask(self, mask: np.ndarray) -> None:
        """Write the tokens that may come next; end-of-sequence tokens exactly where `accepting`.

        Args:
            mask: int32 [ceil(vocab_size / 32)], overwritten.
        """
        ...

    def advance(self, tokens: Sequence[int]) -> None:
        """Go on by tokens that the mask allowed, the end-of-sequence ones aside; asserts that."""
        ...

    def forced(self) -> list[int]:
        """The tokens that any continuation begins with, none if there is a choice.

        They are how the tokenizer writes the forced text after what came before, less a last token
        that what follows could merge with. Nothing that came before changes.
        """
        ...

    def copy(self) -> Matcher:
        """The same position, to be moved on its own."""
        ...


class CompiledGrammar(Protocol):
    """A grammar over one tokenizer's vocabulary. Safe to use from any thread."""

    def start(self) -> Matcher:
        """A matcher at the beginning."""
        ...
