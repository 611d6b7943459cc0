"""A picture of a runtime for a terminal: numbers, memory, the tree's largest runs, requests.

What users wrote is shown as text without control characters: it cannot move the cursor, change
colours or turn the writing direction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType

    from branchline.protocol import Inspection
    from branchline.runtime.cli.rates import Past, Rates
    from branchline.runtime_info import RequestView, RuntimeInfo, TreeNode

BAR = 24  # characters
SHORT_BAR = 12
CURVE = "▁▂▃▄▅▆▇█"
USED, FRESH, PRIVATE, SOFT = "blue", "green", "yellow", "bright_black"


def screen(seen: Inspection, rates: Rates, past: Past, rows: int) -> RenderableType:
    """The whole picture; the tree and the requests share `rows` lines."""
    info = seen.info
    nodes = min(len(seen.nodes), max(rows // 2, rows - len(seen.requests)))
    return Group(
        _head(info),
        "",
        _numbers(info, rates, past),
        _pages(info),
        "",
        _title(
            "Cached prefixes",
            f"{info.pages_cached:,} tokens in {seen.total_nodes:,} runs, the largest {nodes:,}:",
        ),
        tree(seen.nodes, nodes, info.pages_cached),
        "",
        _title("Requests", f"{info.running:,} running, {info.waiting:,} waiting"),
        _requests(seen.requests[: max(rows - nodes, 1)]),
    )


def plain(text: str) -> str:
    """A text on one line: what cannot be printed as a character of its own becomes a dot."""
    line = " ⏎ ".join(text.splitlines())
    return "".join(c if c.isprintable() else "·" for c in line)


def _title(title: str, rest: str) -> Text:
    parts = (title, "bold"), "  ", (rest, SOFT)
    return Text.assemble(*parts, no_wrap=True, overflow="ellipsis")


def _head(info: RuntimeInfo) -> Text:
    up = f"{info.uptime:,.0f} s"
    return Text.assemble(("Branchline", "bold"), f"  {plain(info.model)}, up {up}")


# ---------------------------------------------------------------------------- numbers


def _numbers(info: RuntimeInfo, rates: Rates, past: Past) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_row("written", f"{rates.written:,.0f} tokens/s", Text(_curve(past.written), USED))
    hit = "–" if rates.hit_rate is None else f"{rates.hit_rate:.1%}"
    table.add_row("from the cache", hit, _bar([(rates.hit_rate or 0.0, FRESH)]))
    table.add_row("first token", *_latency(rates.ttft, info.target_ttft))
    table.add_row("each further", *_latency(rates.tpot, info.target_tpot))
    table.add_row("memory", f"{info.pages_total:,} pages", _memory(info))
    return table


def _curve(values: Sequence[float]) -> str:
    """Values as blocks of eight heights, the highest full."""
    top = max(values, default=0.0) or 1.0
    return "".join(CURVE[round(value / top * (len(CURVE) - 1))] for value in values)


def _latency(latency: tuple[float, float] | None, target: float) -> tuple[str, Text]:
    if latency is None:
        return "–", Text()
    aim = f", target {_seconds(target)}" if target else ""
    return _seconds(latency[0]), Text(f"95 %: {_seconds(latency[1])}{aim}", SOFT)


def _seconds(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _states(info: RuntimeInfo) -> list[tuple[int, str, str]]:
    """Pages that hold something, by state, with colour and name."""
    return [
        (info.pages_protected, USED, "in use"),
        (info.pages_cached - info.pages_protected, FRESH, "cached"),
        (info.pages_private, PRIVATE, "private"),
    ]


def _memory(info: RuntimeInfo) -> Text:
    return _bar([(pages / max(info.pages_total, 1), colour) for pages, colour, _ in _states(info)])


def _pages(info: RuntimeInfo) -> Text:
    """What the colours of the memory's bar mean, in numbers."""
    line = Text(no_wrap=True, overflow="ellipsis")
    for pages, colour, words in [*_states(info), (info.pages_free, SOFT, "free")]:
        line.append("█ ", colour).append(f"{pages:,} {words}  ", SOFT)
    return line


def _bar(shares: Sequence[tuple[float, str]], width: int = BAR) -> Text:
    """Coloured shares of a line; their ends are rounded, so their sum is right too."""
    bar, end, drawn = Text(), 0.0, 0
    for share, colour in shares:
        end += share
        length = max(min(round(end * width), width) - drawn, 0)
        bar.append("█" * length, colour)
        drawn += length
    return bar.append("░" * (width - drawn), SOFT)


# ---------------------------------------------------------------------------- tree, requests


def tree(nodes: Sequence[TreeNode], count: int, cached: int) -> Table:
    """The `count` largest runs, what continues one indented below it."""
    table = Table.grid(padding=(0, 2), expand=True)
    for width in (9, SHORT_BAR, 5):  # the numbers keep their room; texts get the rest
        table.add_column(justify="right", width=width)
    table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    for node, depth in _in_order(nodes, count):
        colour = USED if node.users else FRESH if node.idle < 0.5 else SOFT
        text = Text("  " * depth).append(plain(node.text), "" if node.users else SOFT)
        users = f"×{node.users}" if node.users else ""
        share = min(node.subtree / max(cached, 1), 1.0)
        table.add_row(f"{node.subtree:,}", _bar([(share, colour)], SHORT_BAR), users, text)
    return table


def _in_order(nodes: Sequence[TreeNode], count: int) -> Iterator[tuple[TreeNode, int]]:
    """The largest nodes depth first with their depth, those of one parent largest first.

    A parent is at least as large as each child and comes before it, so none lacks its parent.
    """
    below: dict[int, list[TreeNode]] = {}
    for node in sorted(nodes, key=lambda node: -node.subtree)[:count]:
        below.setdefault(node.parent, []).append(node)
    wait = [(node, 0) for node in reversed(below.get(-1, []))]
    while wait:
        node, depth = wait.pop()
        yield node, depth
        wait += [(child, depth + 1) for child in reversed(below.get(node.id, []))]


def _requests(requests: Sequence[RequestView]) -> Table:
    table = Table.grid(padding=(0, 2), expand=True)
    for name in ("request", "program", "prompt", "cached", "written", "", "age"):
        table.add_column(name, no_wrap=True, overflow="ellipsis")
    table.add_row(*(Text(str(column.header), SOFT) for column in table.columns))
    for request in requests:
        table.add_row(*_request(request))
    return table


def _request(request: RequestView) -> list[RenderableType]:
    running = request.state == "running"
    name = f"{request.rid}#{request.index}" if request.index else request.rid
    cached = request.cached_tokens / request.prompt_tokens if request.prompt_tokens else 0.0
    done = request.output_tokens / request.max_tokens if request.max_tokens else 1.0
    return [
        Text("● ", USED).append(plain(name), "default")
        if running
        else Text(f"○ {plain(name)}", SOFT),
        Text(plain(request.program or "")),
        f"{request.prompt_tokens:,}",
        f"{cached:.0%}" if running else "",
        f"{request.output_tokens:,} of {request.max_tokens:,}",
        _bar([(done if running else 0.0, USED)], SHORT_BAR),
        f"{request.age:,.1f} s",
    ]
