"""What a program tells the runtime of its next requests."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pydantic import ConfigDict

MAX_DEPTH = 64  # forks within forks
MAX_FAN_OUT = 1 << 16
MAX_KEEP = 7 * 24 * 3600.0  # seconds
MAX_PROGRAM_CHARS = 128

Branch = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hints:
    """Advice on what to keep cached: it changes what is evicted first, never an answer.

    A live branch will go on from where its last request ended, so that is evicted late. A fork will
    be gone on from by each of its branches, until each has come. What a branch had for itself is
    evicted first once it has ended (`protocol.Ended`).

    Raises:
        ValueError: a value is out of range; the message names it and the rule.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    # Which state of its program asks: (fork, index) for each fork above, outermost first. Forks are
    # numbered for each branch. () is where the program starts.
    branch: Branch = ()
    fan_out: int = 1  # branches of the innermost fork
    keep: float = 0.0  # seconds for which the prompt is kept as if several needed it

    def __post_init__(self) -> None:
        check_branch(self.branch)
        index = self.branch[-1] if self.branch else 0
        if not index < self.fan_out <= MAX_FAN_OUT:
            raise ValueError(
                f"fan_out={self.fan_out}: must be above {index}, the branch's index, and at most "
                f"{MAX_FAN_OUT}"
            )
        if not (math.isfinite(self.keep) and 0.0 <= self.keep <= MAX_KEEP):
            raise ValueError(f"keep={self.keep}: must be from 0 to {MAX_KEEP:g} seconds")


def check_branch(branch: Branch) -> None:
    """Raise ValueError where this names no branch."""
    if len(branch) % 2 or len(branch) > 2 * MAX_DEPTH or any(number < 0 for number in branch):
        raise ValueError(
            f"branch={branch}: must be a fork and an index for each fork above, none negative, "
            f"at most {MAX_DEPTH} forks"
        )


def check_program(program: str | None) -> None:
    """Raise ValueError where this is no program's id."""
    if program is not None and not 0 < len(program) <= MAX_PROGRAM_CHARS:
        raise ValueError(
            f"program={program[:16]!r}…: must have 1 to {MAX_PROGRAM_CHARS} characters"
        )
