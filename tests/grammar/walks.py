"""Random walks through a grammar, and what it says of a whole text."""

from __future__ import annotations

import json
from decimal import Decimal, InvalidOperation, getcontext
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import random

    from branchline.runtime.grammar import CompiledGrammar, Matcher
    from branchline.runtime.grammar.vocabulary import Vocabulary


def allowed(matcher: Matcher, vocabulary: Vocabulary) -> list[int]:
    """The ids of the mask."""
    mask = np.full(-(-vocabulary.size // 32), -1, np.int32)
    matcher.fill_mask(mask)
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    assert not bits[vocabulary.size :].any(), "bits beyond the vocabulary"
    return np.flatnonzero(bits[: vocabulary.size]).tolist()


def accepts(grammar: CompiledGrammar, vocabulary: Vocabulary, ids: list[int]) -> bool:
    """Whether the grammar lets an output of just these ids pass and end."""
    matcher = grammar.start()
    for token in ids:
        if token not in allowed(matcher, vocabulary):
            return False
        matcher.advance([token])
    return matcher.accepting


def sample(
    grammar: CompiledGrammar,
    vocabulary: Vocabulary,
    rng: random.Random,
    *,
    longest: int = 120,
    closing: bytes = b'"}],0123456789',
) -> bytes | None:
    """A random output; None where none came to its end.

    A third of the draws are among the tokens that are one byte of `closing`, and all of them are in
    the second half, so that it does end.
    """
    closers = {i for i, text in enumerate(vocabulary.token_bytes) if text and text in closing}
    closers = {i for i in closers if len(vocabulary.token_bytes[i] or b"") == 1}
    matcher = grammar.start()
    text = b""
    for step in range(longest):
        forced = matcher.forced()
        for token in forced:
            text += _text(vocabulary, token)
        matcher.advance(forced)
        if matcher.complete:
            return text
        ids = allowed(matcher, vocabulary)
        assert bool(vocabulary.eos & set(ids)) == matcher.accepting
        few = [i for i in ids if i in closers | vocabulary.eos]
        short = few if few and (step > longest // 2 or rng.random() < 1 / 3) else ids
        token = rng.choice(short)
        if token in vocabulary.eos:
            return text
        text += _text(vocabulary, token)
        matcher.advance([token])
    return None


def _text(vocabulary: Vocabulary, token: int) -> bytes:
    text = vocabulary.token_bytes[token]
    assert text is not None, f"token {token} is no text"
    return text


def exactly(text: str) -> Any:
    """JSON with decimal fractions as they are written: as floats, 405.431 is no multiple of 0.0001.

    What has more digits before the point than a Decimal divides is a float.
    """
    return json.loads(text, parse_float=_number)


def _number(text: str) -> Decimal | float:
    try:
        number = Decimal(text)
    except InvalidOperation:  # an exponent that is itself too large
        return float(text)
    return number if number.adjusted() < getcontext().prec - 8 else float(text)
