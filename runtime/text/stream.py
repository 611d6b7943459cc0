"""A generation's ids in, its text out: detokenizing, stop strings and stop ids.

::

    decoded   [ shown: final, sent               )[ held: may begin a stop )
    a stop    [ shown              )[ the stop )   nothing after it exists
    kept ids  [ wholly before the cut )[ tail  )

"""

from __future__ import annotations

from typing import TYPE_CHECKING

from branchline.runtime.text.stops import StopMatcher

if TYPE_CHECKING:
    from collections.abc import Sequence

    from branchline.runtime.text.tokenizer import Tokenizer
    from branchline.sampling_params import SamplingParams


class TextStream:
    """Turns the ids of one choice into its text and says when a stop has completed.

    * What `push` and `finish` return, joined, is `text`. It never holds half a character, never the
      start of a stop string that then completes, and nothing is taken back.
    * A stop string ends the text before it, or after it with `no_stop_trim`. Of several, the one
      that is complete first; of those, the longest. Text that came before `min_tokens` tokens were
      out is no part of a match.
    * A stop id ends the text before its own text, so no stop string completes in it. With
      `no_stop_trim` its text, where it is visible, is kept.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        stop_ids: frozenset[int],
    ) -> None:
        self._detokenizer = tokenizer.detokenizer(
            prompt_ids, skip_special_tokens=params.skip_special_tokens
        )
        self._params = params
        self._stop_ids = stop_ids
        self._matcher = StopMatcher(params.stop)
        self._count = 0  # ids pushed
        self._unsearched = 0  # characters that came before min_tokens tokens were out
        self._end: int | None = None  # where a stop string cuts the text
        self._shown = 0  # characters sent
        self.matched: str | int | None = None
        # Set by `finish`: what the generation adds to a state, its first `kept` ids and then `tail`
        # as text.
        self.kept = 0
        self.tail = ""

    @property
    def text(self) -> str:
        """All the text that was sent."""
        return self._detokenizer.text[: self._shown]

    def push(self, token: int) -> str:
        """Take the next id; the text that is new and final."""
        assert self.matched is None, "the generation has ended"
        self._count += 1
        if token in self._stop_ids:
            self.matched = token
            return ""
        return self._take(self._detokenizer.push(token))

    def finish(self) -> str:
        """The rest of the text, once, at the end; then `matched`, `kept` and `tail` are final.

        `matched` may be set only here: bytes that never became a character can still complete a
        stop string.
        """
        shown = self._shown
        if self.matched is None:
            self._take(self._detokenizer.flush())
        if isinstance(self.matched, int):
            self._end_with_id(self.matched)
        elif self._end is not None:
            self.kept, self.tail = self._detokenizer.split(self._end)
        else:
            self.kept = self._count
        self._show(len(self._detokenizer.text) if self._end is None else self._end)
        return self.text[shown:]

    def _take(self, chunk: str) -> str:
        """Search decoded text for a stop and show what is final."""
        text = self._detokenizer.text
        if self._count < self._params.min_tokens:
            self._unsearched = len(text)
            return self._show(len(text))
        match = self._matcher.feed(chunk)
        if match is None:
            return self._show(len(text) - self._matcher.held)
        start, end = self._unsearched + match.start, self._unsearched + match.end
        self.matched = text[start:end]
        self._end = end if self._params.no_stop_trim else start
        return self._show(self._end)

    def _end_with_id(self, stop: int) -> None:
        self._detokenizer.flush()
        self.kept = self._count - 1
        if self._params.no_stop_trim:
            self.tail = self._detokenizer.push(stop) + self._detokenizer.flush()

    def _show(self, end: int) -> str:
        assert end >= self._shown, "text that was sent is not taken back"
        new, self._shown = self._detokenizer.text[self._shown : end], end
        return new
