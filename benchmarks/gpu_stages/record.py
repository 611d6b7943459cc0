"""What a run finds: rows with their targets, stages, the table and the JSON of them all."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

MORE_IS_BETTER = frozenset({"GB/s", "TB/s", "TFLOP/s", "tok/s", "x", "%"})
# Errors against the right answer, and differences: `target` is the most that is allowed.
LESS_IS_BETTER = frozenset({"us", "ms", "s", "error", "faults"})


class NeedsDevice(Exception):
    """The stage measures what only a device has."""


@dataclass(frozen=True, slots=True)
class Row:
    """One figure."""

    name: str
    value: float
    unit: str
    target: float | None = None
    note: str = ""

    def __post_init__(self) -> None:
        assert self.unit in MORE_IS_BETTER | LESS_IS_BETTER, self.unit

    @property
    def met(self) -> bool | None:
        """Whether the target was reached; None: there is none. A NaN reaches nothing."""
        if self.target is None:
            return None
        if self.unit in MORE_IS_BETTER:
            return self.value >= self.target
        return self.value <= self.target

    @property
    def line(self) -> str:
        """The row of the table."""
        verdict = {None: "", True: "met", False: "MISSED"}[self.met]
        target = "" if self.target is None else number(self.target)
        start = f"  {self.name:52}{number(self.value):>12} {self.unit:8}{target:>10} {verdict:7}"
        return f"{start}{self.note}".rstrip()


def number(value: float) -> str:
    """Three or four digits that mean something."""
    if value and abs(value) < 0.01:
        return f"{value:.1e}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


@dataclass(slots=True)
class Stage:
    """What became of a stage."""

    name: str
    status: str = "running"  # then done, late, failed or skipped
    seconds: float = 0.0
    rows: list[Row] = field(default_factory=list)
    reason: str = ""  # of whatever is not done


@dataclass(slots=True)
class Record:
    """A whole run."""

    machine: dict[str, Any]
    stages: list[Stage] = field(default_factory=list)

    def write(self, path: Path | None) -> None:
        """Write all that is known so far."""
        if path is None:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        content = asdict(self)
        for stage, written in zip(self.stages, content["stages"], strict=True):
            for row, fields in zip(stage.rows, written["rows"], strict=True):
                fields["met"] = row.met
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")

    def table(self) -> str:
        """Everything once more, in one piece."""
        lines = [f"{name}: {value}" for name, value in self.machine.items()]
        for stage in self.stages:
            ending = f": {stage.reason}" if stage.reason else ""
            lines.append(f"\n{stage.name} ({stage.seconds:.1f} s, {stage.status}{ending})")
            lines += [row.line for row in stage.rows]
        verdicts = [row.met for stage in self.stages for row in stage.rows if row.met is not None]
        lines.append(f"\n{sum(verdicts)} of {len(verdicts)} targets met")
        return "\n".join(lines)

    @property
    def failed(self) -> list[str]:
        """The stages that raised something."""
        return [stage.name for stage in self.stages if stage.status == "failed"]
