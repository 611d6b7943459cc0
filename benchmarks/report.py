"""Results as tables and files."""

from __future__ import annotations

import json
import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from measure import Result

NONE = "–"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table with aligned columns: the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        aligned = [cells[0].ljust(widths[0])]
        aligned += [cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True)]
        return f"| {' | '.join(aligned)} |"

    rule = "|".join(["-" * (widths[0] + 2), *("-" * (width + 1) + ":" for width in widths[1:])])
    return "\n".join([line(head), f"|{rule}|", *map(line, rows)])


def number(value: float | None, digits: int = 0, scale: float = 1.0) -> str:
    """A number with thousands separated; a dash for none."""
    return NONE if value is None else f"{value * scale:,.{digits}f}"


DETAILS = (
    "workload",
    "seconds",
    "requests",
    "tok/s",
    "TTFT p50 / p99 ms",
    "TPOT p50 / p99 ms",
    "hit rate",
    "computed",
    "saved",
    "host ms a step",
    "load",
)


def details(results: Sequence[Result]) -> str:
    """Everything that was measured, a row for each workload."""
    return table(DETAILS, [_row(result) for result in results])


def _row(result: Result) -> list[str]:
    def pair(low: float | None, high: float | None, digits: int) -> str:
        return f"{number(low, digits, 1e3)} / {number(high, digits, 1e3)}"

    return [
        result.workload,
        number(result.seconds, 2),
        number(result.requests),
        number(result.tokens_per_second) if result.tokens else NONE,
        pair(result.ttft_p50, result.ttft_p99, 0),
        pair(result.tpot_p50, result.tpot_p99, 1),
        NONE if result.hit_rate is None else f"{result.hit_rate:.1%}",
        number(result.computed_tokens),
        number(result.saved_tokens),
        number(result.host_seconds, 2, 1e3),
        f"{result.load_before:.1f} → {result.load_after:.1f}",
    ]


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a file of results; its folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
