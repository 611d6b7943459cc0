"""What a name stands for at one place of a program."""

from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from branchline.feed import Feed

if TYPE_CHECKING:
    from branchline.program_error import ProgramError
    from branchline.protocol import Update


class Variable:
    """A value that one node fills, once.

    A state and its forks share it; giving its name again makes another.
    """

    def __init__(self) -> None:
        self.updates: Feed[Update] = Feed()  # of a streamed generation's first choice
        self.filled: Future[Any] = Future()
        self._meta: Any = None
        self._text: Any = None

    def fill(self, value: Any, meta: Any = None, text: Any = None) -> None:
        """Give it its value, what is known about it, and the text that was written for it."""
        self._meta, self._text = meta, text
        self.filled.set_result(value)

    def fail(self, error: ProgramError, meta: Any = None, text: Any = None) -> None:
        """Say why it has no value; what was written may be there all the same."""
        self._meta, self._text = meta, text
        self.filled.set_exception(error)

    @property
    def ready(self) -> bool:
        """Whether it has its value now."""
        return self.filled.done() and self.filled.exception() is None

    def get(self) -> Any:
        """Its value, when it is there.

        Raises:
            ProgramError: what was to fill it failed.
        """
        error = self.filled.exception()
        if error is not None:
            # The same error may be raised at many places; each starts with a fresh traceback.
            raise error.with_traceback(None)
        return self.filled.result()

    def text(self) -> Any:
        """What was written for it, when it is there, also where that is no value of its type.

        Raises like `get` where nothing was; None for a value that a program has set.
        """
        if self.filled.exception() is None or self._text is None:
            self.get()
        return self._text

    def whole(self) -> Any:
        """Its text, or its value where a program has set it. Raises like `text`."""
        text = self.text()
        return self.get() if text is None else text

    def meta(self) -> Any:
        """What is known about it, when it is there, if anything is. Raises like `text`."""
        self.text()
        return self._meta
