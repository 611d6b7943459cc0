"""Draw the results of `compare.py`: a panel for each workload, a bar for each engine.

usage: python benchmarks/chart.py RESULTS.json CHART.png
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TITLES = {
    "single": "one stream",
    "batch32": "32 prompts at once",
    "fewshot64": "few-shot GSM8K, 64 questions",
    "chat16": "16 chats, 4 turns",
    "tree": "tree of thought, 8 questions",
}
COLOURS = {
    "branchline float32": "#1f6f5c",
    "branchline int8": "#3fb68b",
    "vLLM bf16": "#8a8f98",
    "llama.cpp Q4_1": "#b4b8bf",
    "transformers float32": "#d5d8dc",
}


def draw(results: Path, chart: Path) -> None:
    """Draw the medians in a file of results."""
    content = json.loads(results.read_text(encoding="utf-8"))
    medians: dict[str, dict[str, Any]] = content["medians"]
    names = [name for name in TITLES if any(name in runs for runs in medians.values())]
    figure = Figure(figsize=(8, 1.5 * len(names) + 0.6), layout="constrained")
    panels = figure.subplots(len(names), 1, squeeze=False)
    for name, panel in zip(names, panels[:, 0], strict=True):
        engines = [engine for engine in COLOURS if name in medians.get(engine, {})]
        values = [medians[engine][name]["tokens_per_second"] for engine in engines]
        _bars(panel, TITLES[name], engines, values)
    machine = content["machine"]
    figure.supxlabel(
        f"generated tokens per second · SmolLM2 135M, greedy · {machine['processor']}, "
        f"{machine['cores']} cores · {'warm' if content['warm'] else 'cold'} caches",
        fontsize=8,
        color="#555555",
    )
    chart.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(chart, dpi=144)


def _bars(panel: Axes, title: str, engines: list[str], values: list[float]) -> None:
    bars = panel.barh(engines, values, color=[COLOURS[engine] for engine in engines], height=0.75)
    panel.bar_label(bars, labels=[f"{value:,.0f}" for value in values], padding=4, fontsize=8)
    panel.set_title(title, loc="left", fontsize=10, fontweight="bold")
    panel.invert_yaxis()
    panel.set_xlim(0, 1.12 * max(values))
    panel.xaxis.set_visible(False)
    panel.tick_params(axis="y", length=0, labelsize=8)
    panel.spines[["top", "right", "bottom"]].set_visible(False)


if __name__ == "__main__":
    draw(Path(sys.argv[1]), Path(sys.argv[2]))
