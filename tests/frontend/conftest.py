"""What the language's tests share."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def soon() -> Callable[[Callable[[], Any]], Any]:
    """Calls what must not hang: its result or exception, or a failure after five seconds."""

    def call(action: Callable[[], Any]) -> Any:
        outcome: list[Any] = []

        def attempt() -> None:
            try:
                outcome.extend([action(), None])
            except BaseException as error:  # noqa: BLE001 - raised below, in the test's thread
                outcome.extend([None, error])

        thread = threading.Thread(target=attempt, daemon=True)
        thread.start()
        thread.join(5)
        assert outcome, "still waiting after 5 s"
        value, error = outcome
        if error is not None:
            raise error
        return value

    return call
