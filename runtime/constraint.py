"""One request's way through its grammar: what it may write next, and what it must.

What must follow is taken at once where the request jumps, and otherwise token by token, each then
the only one allowed. So the tokens are the same either way. Where two wishes collide the grammar
wins, and `note` says against what:

* EOS is allowed exactly where the grammar accepts. `min_tokens` and `ignore_eos` keep it away while
  anything else is allowed, but not longer: a complete grammar ends the output.
* A user's stop id is a token like any other to the grammar; where it is written, the output ends,
  in forced text too. A stop string may end it anywhere.
* A bias cannot forbid what the grammar leaves alone; `max_tokens` cuts a structure short.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from branchline.errors import InvalidRequest, RuntimeFailed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from branchline.runtime.grammar import Matcher
    from branchline.sampling_params import SamplingParams

_BAN = -100.0  # a bias that is meant to rule a token out


class Wishes:
    """What a request asks for beside its grammar. All choices of the request share it."""

    def __init__(
        self,
        params: SamplingParams,
        *,
        eos: frozenset[int],
        stop_ids: frozenset[int],
        vocab_size: int,
    ) -> None:
        """Of one request.

        Args:
            params: how it samples.
            eos: the ends that its grammar knows; the lowest is taken where it must end.
            stop_ids: what ends the output, `eos` included.
            vocab_size: of the logits, and of the grammar.
        """
        self.max_tokens = params.max_tokens
        self.eos = eos
        # Each token needs logits of its own where its logprob is asked for. Prompt logprobs come
        # with the first token, so that has to be drawn.
        asks = params.wants_logprobs or params.logprob_start is not None
        self.jumps = params.jump_forward and not asks
        self.words = -(-vocab_size // 32)
        self._params = params
        self._stop_ids = stop_ids
        self._banned = frozenset(t for t, bias in params.logit_bias.items() if bias <= _BAN)
        self._stop_bits = bits(stop_ids, self.words)
        self._eos_bits = bits(eos, self.words)
        self._banned_bits = bits(self._banned, self.words) if self._banned else None

    def narrow(self, mask: NDArray[np.int32], output_len: int) -> int | None:
        """Leave the end out of a mask while it is too early for it, unless nothing else is allowed.

        Returns:
            A token that stays allowed against a wish, if there is one.
        """
        refused = None
        ends = self._ends_that_wait(output_len)
        if ends is not None:
            kept = mask & ~ends
            if kept.any():
                mask[:] = kept
            else:
                refused = lowest(mask)
        if self._banned_bits is not None and not (mask & ~self._banned_bits).any():
            refused = lowest(mask)
        return refused

    def against(self, token: int, output_len: int) -> list[str]:
        """The wishes that speak against a token which comes after `output_len` others."""
        wishes = []
        if token in self._stop_ids and output_len < self._params.min_tokens:
            wishes.append(f"min_tokens={self._params.min_tokens}")
        if token in self.eos and self._params.ignore_eos:
            wishes.append("ignore_eos")
        if token in self._banned:
            wishes.append(f"logit_bias[{token}]={self._params.logit_bias[token]:g}")
        return wishes

    def _ends_that_wait(self, output_len: int) -> NDArray[np.int32] | None:
        if output_len < self._params.min_tokens:
            return self._stop_bits
        return self._eos_bits if self._params.ignore_eos else None


class Constraint:
    """A matcher that has taken what the output has, and the mask of what may come next.

    Its methods raise InvalidRequest where the grammar cannot go on, and RuntimeFailed where the
    model did not follow it; either ends this request only.
    """

    def __init__(self, matcher: Matcher, wishes: Wishes) -> None:
        """Before the first token; the matcher is this constraint's own."""
        self.mask = np.zeros(wishes.words, dtype=np.int32)  # as a `Matcher` fills it; see `prepare`
        self.note = ""  # see `Finish.note`
        self._matcher = matcher
        self._wishes = wishes
        self._due: deque[int] = deque()  # without jumps: what must come, one by one

    def copy(self) -> Constraint:
        """The same way so far, for another choice of the same prompt."""
        twin = Constraint(self._matcher.copy(), self._wishes)
        twin.note = self.note
        twin._due.extend(self._due)
        return twin

    def begin(self) -> list[int]:
        """What the output begins with, whatever is drawn: to be taken at once. Called once."""
        return self._go_on(0)

    def prepare(self, output_len: int) -> None:
        """Fill the mask for the token after `output_len` others; never an empty one."""
        if self._due:
            self.mask[:] = bits((self._due[0],), len(self.mask))
        else:
            self._matcher.fill_mask(self.mask)
            if not self.mask.any():
                raise InvalidRequest(
                    f"the grammar cannot go on after {output_len} tokens: no token of this model's "
                    "vocabulary writes what it wants"
                )
        refused = self._wishes.narrow(self.mask, output_len)
        if refused is not None:
            self._remark(refused, output_len)

    def take(self, token: int, output_len: int) -> list[int]:
        """Go on by a token that was drawn under the prepared mask, after `output_len` others.

        Returns:
            What must follow it: to be taken at once, as far as the output goes.
        """
        if not (int(self.mask[token // 32]) >> token % 32) & 1:
            raise RuntimeFailed(
                f"the model drew token {token}, which the grammar does not allow: it gives nothing "
                "that is allowed a finite logit"
            )
        if token in self._wishes.eos:
            return []
        self._matcher.advance([token])
        if self._due:
            self._due.popleft()
        return self._go_on(output_len + 1)

    def _go_on(self, output_len: int) -> list[int]:
        if not self._wishes.jumps:
            if not self._due:
                self._due.extend(self._forced())
            return []
        room = self._wishes.max_tokens - output_len
        tokens: list[int] = []
        while len(tokens) < room and (forced := self._forced()):
            tokens += forced
            if forced[0] in self._wishes.eos:
                break
            self._matcher.advance(forced)
        for count, token in enumerate(tokens[:room], start=output_len):
            self._remark(token, count)
        return tokens

    def _forced(self) -> list[int]:
        return [min(self._wishes.eos)] if self._matcher.complete else self._matcher.forced()

    def _remark(self, token: int, output_len: int) -> None:
        """Note against what the grammar insisted on a token after `output_len` others."""
        wishes = self._wishes.against(token, output_len)
        if wishes and not self.note:
            self.note = (
                f"after {output_len} tokens the grammar left only token {token}, against "
                f"{' and '.join(wishes)}"
            )


def bits(tokens: Iterable[int], words: int) -> NDArray[np.int32]:
    """The mask of some tokens, int32 [words]; ids beyond it are left out."""
    mask = np.zeros(words, dtype=np.uint32)
    for token in tokens:
        if 0 <= token < 32 * words:
            mask[token // 32] |= np.uint32(1 << token % 32)
    return mask.view(np.int32)


def lowest(mask: NDArray[np.int32]) -> int:
    """The lowest token that a mask allows."""
    word = int(mask.astype(bool).argmax())
    value = int(mask[word]) & 0xFFFFFFFF
    return 32 * word + (value & -value).bit_length() - 1
