"""What a run tells a backend that keeps a cache: where it will go on, and where no more."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from branchline.backend import takes_hints
from branchline.hints import MAX_DEPTH, MAX_FAN_OUT, Hints

if TYPE_CHECKING:
    from branchline.backend import Backend
    from branchline.control import Branch

_numbers = itertools.count()


class Claims:
    """The hints of one run. A state that goes on after its program has ended gives none."""

    def __init__(self) -> None:
        self._id = f"run-{next(_numbers)}"
        self._over = False

    @property
    def program(self) -> str | None:
        """What the runtime knows the run by."""
        return None if self._over else self._id

    def hints(self, branch: Branch, fan_out: int) -> Hints | None:
        """Where in its program a request comes from; beyond what can be said, nothing."""
        if self._over or len(branch) > 2 * MAX_DEPTH or fan_out > MAX_FAN_OUT:
            return None
        return Hints(branch=branch, fan_out=fan_out)

    def end(self, backend: Backend, branch: Branch = ()) -> None:
        """The run, or a branch of it, will ask nothing more. It is advice, and may be wrong."""
        if takes_hints(backend) and not self._over and len(branch) <= 2 * MAX_DEPTH:
            backend.ended(self._id, branch)
        self._over = self._over or not branch
