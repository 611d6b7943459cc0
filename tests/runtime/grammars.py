"""Grammars over the stub's tokens, written down as automata, and what is right under them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from branchline.runtime.constraint import Constraint, Wishes
from branchline.runtime.reports import begin

from .stub import EOS, VOCAB, make_request, mix, next_token

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    from branchline.runtime.request import Request


@dataclass
class Place:
    """What may follow, and where it leads. Of several ways to write one text, one is canonical."""

    edges: dict[int, int] = field(default_factory=dict)
    accepting: bool = False
    canonical: int | None = None  # all edges write the same, this is how the tokenizer would

    @property
    def must(self) -> int | None:
        return None if self.accepting else self.canonical


class TokenGrammar:
    """`CompiledGrammar` and, since a position is just a number, what its matchers share."""

    def __init__(self, places: Sequence[Place]) -> None:
        self.places = list(places)
        self.matchers = 0

    def start(self) -> TokenMatcher:
        self.matchers += 1
        return TokenMatcher(self)

    @classmethod
    def random(cls, rng: random.Random) -> TokenGrammar:
        """Places in a row, six of ten with no choice, some with a way back; the last is the end."""
        count = rng.randrange(1, 25)
        places = []
        for at in range(count):
            tokens = rng.sample(range(1, VOCAB), rng.randrange(2, 9))
            if rng.random() < 0.6:
                place = Place(dict.fromkeys(tokens[: rng.choice([1, 1, 2])], at + 1))
                place.canonical = rng.choice(list(place.edges))
            else:
                place = Place({t: rng.randrange(at + 1, count + 1) for t in tokens})
                if rng.random() < 0.3:
                    place.edges[tokens[0]] = rng.randrange(at + 1)
                place.accepting = rng.random() < 0.3
            places.append(place)
        return cls([*places, Place(accepting=True)])

    @classmethod
    def text(cls, *steps: int | set[int]) -> TokenGrammar:
        """One token after the other; a set is a choice."""
        places = []
        for at, step in enumerate(steps):
            tokens = {step} if isinstance(step, int) else step
            places.append(Place(dict.fromkeys(tokens, at + 1)))
            places[-1].canonical = step if isinstance(step, int) else None
        return cls([*places, Place(accepting=True)])


class TokenMatcher:
    """`Matcher` over a `TokenGrammar`."""

    def __init__(self, grammar: TokenGrammar, at: int = 0) -> None:
        self.grammar = grammar
        self.at = at

    @property
    def place(self) -> Place:
        return self.grammar.places[self.at]

    @property
    def accepting(self) -> bool:
        return self.place.accepting

    @property
    def complete(self) -> bool:
        return self.place.accepting and not self.place.edges

    def fill_mask(self, mask: np.ndarray) -> None:
        assert len(mask) >= -(-VOCAB // 32)
        mask[:] = 0
        for token in [*self.place.edges, *([EOS] if self.accepting else [])]:
            mask.view(np.uint32)[token // 32] |= np.uint32(1 << token % 32)

    def advance(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            assert token in self.place.edges, "the mask did not allow it"
            self.at = self.place.edges[token]

    def forced(self) -> list[int]:
        ahead, tokens = self.copy(), []
        while (token := ahead.place.must) is not None:
            tokens.append(token)
            ahead.advance([token])
        return tokens

    def copy(self) -> TokenMatcher:
        return TokenMatcher(self.grammar, self.at)


def constrained(grammar: TokenGrammar, prompt: list[int], **params: object) -> list[int]:
    """What the stub writes under a grammar, greedily and token by token, EOS included."""
    given = {"max_tokens": 8, "min_tokens": 0, "ignore_eos": False, **params}
    prefix = 0
    for token in prompt:
        prefix = mix(prefix, token)
    output: list[int] = []
    place = grammar.places[0]
    while len(output) < given["max_tokens"]:  # type: ignore[operator]
        early = len(output) < given["min_tokens"] or given["ignore_eos"]  # type: ignore[operator]
        allowed = set(place.edges)
        if place.accepting and not (early and allowed):
            allowed.add(EOS)
        if place.must is not None:
            allowed = {place.must}
        best = next_token(prefix)
        output.append(best if best in allowed else min(allowed))
        if output[-1] == EOS:
            break
        prefix = mix(prefix, output[-1])
        place = grammar.places[place.edges[output[-1]]]
    return output


def constrain(request: Request, grammar: TokenGrammar, vocab_size: int = VOCAB) -> Request:
    """Put a request that was just made at the beginning of a grammar, as the service does."""
    request.stop_ids |= {EOS}
    request.text._stop_ids = request.stop_ids  # type: ignore[attr-defined]
    if request.params.max_tokens:
        wishes = Wishes(
            request.params, eos=frozenset({EOS}), stop_ids=request.stop_ids, vocab_size=vocab_size
        )
        begin([request], Constraint(grammar.start(), wishes))
    return request


def make_constrained(grammar: TokenGrammar, prompt: list[int], **params: object) -> Request:
    return constrain(make_request(prompt, **params), grammar)  # type: ignore[arg-type]
