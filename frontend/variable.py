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

    def fill(self, value: Any, meta: Any = None) -> None:
        """Give it its value and what is known about it."""
        self._meta = meta
        self.filled.set_result(value)

    def fail(self, error: ProgramError) -> None:
        """Say why it has no value."""
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

    def meta(self) -> Any:
        """What is known about its value, when it is there, if anything is. Raises like `get`."""
        self.get()
        return self._meta
