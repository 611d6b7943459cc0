"""JSON Schema, Lark, GBNF and structural tags, by llguidance."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import numpy as np
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from branchline.errors import InvalidRequest
from branchline.runtime.grammar import trial
from branchline.runtime.grammar.reasons import reason
from branchline.runtime.grammar.schema import place_of
from branchline.runtime.grammar.sources import guidance_source

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from branchline.grammar import Grammar
    from branchline.runtime.grammar.vocabulary import Vocabulary

_FIRST_STEP = 0.2  # processor seconds


class Guidance:
    """llguidance over one vocabulary. Safe to use from any thread."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        size = vocabulary.size
        texts = (i for i, text in enumerate(vocabulary.token_bytes) if text is not None)
        self._texts, self._ends = _words(texts, size), _words(vocabulary.eos, size)
        self._lock = threading.Lock()
        self._made: LLTokenizer | None = None

    def compile(self, grammar: Grammar) -> GuidanceGrammar:
        """A grammar of any kind but "regex".

        Raises:
            InvalidRequest: it is malformed, asks for what cannot be enforced, matches no text, or
                is more than llguidance's limits allow.
        """
        source = guidance_source(grammar)
        if trial.needed(source):
            trial.survive(source)
        matcher = LLMatcher(self._tokenizer(), source, log_level=0)
        if matcher.is_error():
            error = matcher.get_error()
            schema = grammar.kind == "json_schema"
            place = place_of(grammar.source, error) if schema else ""
            raise InvalidRequest(reason(error) + place)
        compiled = GuidanceGrammar(matcher, self._texts, self._ends)
        compiled.warm()
        return compiled

    def _tokenizer(self) -> LLTokenizer:
        """Made when it is first needed: it takes a tenth of a second."""
        with self._lock:
            if self._made is None:
                tokens = _AsGuidanceReads(self._vocabulary)
                self._made = LLTokenizer(TokenizerWrapper(tokens), n_vocab=len(tokens.tokens))
            return self._made


class GuidanceGrammar:
    """A compiled grammar: a matcher at the beginning, to be copied."""

    def __init__(self, matcher: LLMatcher, texts: np.ndarray, ends: np.ndarray) -> None:
        self._matcher = matcher
        self._texts = texts
        self._ends = ends

    def start(self) -> GuidanceMatcher:
        """A matcher at the beginning."""
        return GuidanceMatcher(self._matcher.deep_copy(), self._texts, self._ends)

    def warm(self) -> None:
        """Take the first step, the slowest; what that has built comes with every copy.

        Raises:
            InvalidRequest: no text matches, or the step takes too long for the engine's thread.
        """
        began = time.thread_time()
        first = GuidanceMatcher(self._matcher, self._texts, self._ends)
        first.allowed()
        first.forced()
        if time.thread_time() - began > _FIRST_STEP:
            raise InvalidRequest(f"it is too complex: its first step takes over {_FIRST_STEP} s")


class GuidanceMatcher:
    """Where one request stands in a grammar.

    What shows only while a grammar runs is an InvalidRequest of `complete`, `fill_mask`, `advance`
    or `forced`: a limit of llguidance's, or a text that nothing can complete. The matcher is of no
    use after it.
    """

    def __init__(self, matcher: LLMatcher, texts: np.ndarray, ends: np.ndarray) -> None:
        self._matcher = matcher
        self._texts = texts  # int32 words: the tokens that are text
        self._ends = ends  # int32 words: the end-of-sequence tokens
        self._allowed: np.ndarray | None = None  # of where it stands, once it is known

    @property
    def accepting(self) -> bool:
        """Whether the output may end here."""
        return bool(self._matcher.is_accepting())

    @property
    def complete(self) -> bool:
        """Whether it must: it may end here, and nothing can follow."""
        return self.accepting and (self._matcher.is_stopped() or not self.allowed().any())

    def fill_mask(self, mask: np.ndarray) -> None:
        """Write the tokens that may come next; see `Matcher.fill_mask`."""
        mask[:] = self.allowed()
        if self.accepting:
            mask |= self._ends

    def allowed(self) -> np.ndarray:
        """The tokens that may come next, the ends aside: int32 words, not to be changed."""
        if self._allowed is None:
            words = len(self._texts)
            written = np.empty(words + 1, np.int32)
            self._matcher.unsafe_compute_mask_ptr(written.ctypes.data, written.nbytes)
            self._check()
            self._allowed = written[:words] & self._texts
            if not self._allowed.any() and not self.accepting:
                raise InvalidRequest("no text can complete this output")
        return self._allowed

    def advance(self, tokens: Sequence[int]) -> None:
        """Go on by tokens; see `Matcher.advance`."""
        self._allowed = None
        if not self._matcher.consume_tokens(list(tokens)):
            self._check()
            raise AssertionError(f"the mask did not allow {list(tokens)}")

    def forced(self) -> list[int]:
        """The tokens that any continuation begins with; see `Matcher.forced`."""
        tokens: list[int] = self._matcher.compute_ff_tokens()
        self._check()
        return tokens

    def copy(self) -> GuidanceMatcher:
        """The same position, to be moved on its own."""
        twin = GuidanceMatcher(self._matcher.deep_copy(), self._texts, self._ends)
        twin._allowed = self._allowed
        return twin

    def _check(self) -> None:
        if self._matcher.is_error():
            error = self._matcher.get_error()
            assert "doesn't satisfy the grammar" not in error, reason(error)
            raise InvalidRequest(reason(error))


def _words(tokens: Iterable[int], size: int) -> np.ndarray:
    """A set of tokens as int32 words, token i as bit i % 32 of word i // 32."""
    bits = np.zeros(-(-size // 32) * 32, bool)
    bits[list(tokens)] = True
    return np.packbits(bits, bitorder="little").view(np.int32)


class _AsGuidanceReads:
    """The vocabulary in the shape that llguidance's TokenizerWrapper asks for.

    llguidance must have an end-of-sequence token, and a vocabulary may have none: so it is shown
    one word of ids more, which are no text.
    """

    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.tokens = [text or b"" for text in vocabulary.token_bytes]
        self.tokens += [b""] * (32 + -vocabulary.size % 32)
        self.special_token_ids = [i for i, text in enumerate(self.tokens) if not text]
        self.eos_token_id = min(vocabulary.eos, default=vocabulary.size)
        self._encode = vocabulary.encode

    def __call__(self, text: bytes | str) -> list[int]:
        return self._encode(text if isinstance(text, str) else text.decode())
