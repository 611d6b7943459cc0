"""Random walks through a grammar, and what it says of a whole text."""

from __future__ import annotations

import json
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
from jsonschema import Draft202012Validator, ValidationError, validators

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

    from branchline.runtime.grammar import CompiledGrammar, Matcher
    from branchline.runtime.grammar.vocabulary import Vocabulary


LONGEST_NUMBER = 10_000  # digits


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
    """JSON with fractions as they are written: as floats, 405.431 is no multiple of 0.0001."""
    return json.loads(text, parse_float=_number)


def _number(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation:  # an exponent of more digits than a Decimal has
        return Decimal(float(text))


def _multiple_of(
    validator: Any, divisor: Any, instance: Any, _schema: Any
) -> Iterator[ValidationError]:
    """Of any size that can be written out; Decimal divides 28 digits only."""
    if not validator.is_type(instance, "number"):
        return
    number = Decimal(instance)
    if number.is_finite() and abs(number.adjusted()) < LONGEST_NUMBER:
        quotient = Fraction(instance) / Fraction(divisor)
        if quotient.denominator != 1:
            yield ValidationError(f"{instance} is no multiple of {divisor}")


def judge(schema: str) -> Any:
    """The validator of a schema, for what `exactly` reads."""
    validator = validators.extend(Draft202012Validator, {"multipleOf": _multiple_of})
    return validator(exactly(schema), format_checker=Draft202012Validator.FORMAT_CHECKER)
