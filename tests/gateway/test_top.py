"""`branchline top`: its arithmetic, its picture, and that nobody's text drives the terminal."""

from __future__ import annotations

import contextlib
import io
import random
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from rich.console import Console

from branchline import eventloop
from branchline.errors import RuntimeUnavailable
from branchline.protocol import TreeNode
from branchline.runtime.cli import main, top
from branchline.runtime.cli.rates import Past, quantile
from branchline.runtime.cli.screen import plain, screen, tree

from .watched import Watched

if TYPE_CHECKING:
    from collections.abc import Iterator

    from branchline.runtime_info import RuntimeInfo


@pytest.fixture
def source(monkeypatch) -> Watched:
    """What `top` finds at every address."""
    watched = Watched()

    @contextlib.contextmanager
    def attach(address: str | None) -> Iterator[Watched]:
        if address == "nowhere":
            raise RuntimeUnavailable("nobody listens at nowhere")
        yield watched

    monkeypatch.setattr(top, "attach", attach)
    return watched


def info_of(source: Watched) -> RuntimeInfo:
    return eventloop.run(source.info())


def drawn(renderable: object) -> str:
    out = io.StringIO()
    Console(file=out, width=110, force_terminal=True).print(renderable)
    return out.getvalue()


def text_of(renderable: object, width: int = 110) -> str:
    out = io.StringIO()
    Console(file=out, width=width).print(renderable)
    return out.getvalue()


# ---------------------------------------------------------------------------- arithmetic


@pytest.mark.parametrize("share", [0.01, 0.5, 0.95, 1.0])
def test_a_quantile_is_right_to_the_width_of_its_bucket(share) -> None:
    draw = random.Random(share)
    values = [draw.expovariate(2.0) for _ in range(1000)]
    bounds = [0.1 * i for i in range(1, 100)]
    counts = [*np.histogram(values, [0.0, *bounds, np.inf])[0]]
    exact = float(np.quantile(values, share, method="inverted_cdf"))
    assert abs(quantile(bounds, counts, share) - exact) <= 0.1


def test_what_lies_beyond_the_bounds_counts_as_the_last() -> None:
    assert quantile([1.0, 2.0], [1, 0, 9], 0.5) == 2.0


def test_rates_are_of_the_last_seconds(source) -> None:
    past = Past()
    idle = past.take(info_of(source))
    assert (idle.written, idle.hit_rate, idle.ttft) == (250.0, None, None)
    source.looks = 1
    rates = past.take(info_of(source))
    assert rates.written == pytest.approx(250.0)
    assert rates.hit_rate == pytest.approx(0.75)
    assert rates.ttft == pytest.approx((0.075, 0.0975))  # all between 0.05 and 0.1
    source.looks = 100  # 99 seconds later: what was before has left the window
    late = past.take(replace(info_of(source), cached_prompt_tokens=3000))
    assert late.hit_rate is None


def test_a_runtime_that_has_started_anew_begins_anew(source) -> None:
    past = Past()
    source.looks = 50
    past.take(info_of(source))
    source.looks = 1
    rates = past.take(replace(info_of(source), tokens_per_second=7.0))
    assert rates.written == 7.0  # what the runtime itself says
    assert rates.hit_rate == pytest.approx(0.75)  # since its start


# ---------------------------------------------------------------------------- the picture


def test_once(source, capsys) -> None:
    assert main(["top", "--once", "ipc:///run/anything"]) == 0
    out = capsys.readouterr().out
    for said in ("toy, up 100 s", "20 running, 2 waiting", "250 tokens/s", "10,000 pages"):
        assert said in out
    lines = out.splitlines()
    at = next(i for i, line in enumerate(lines) if "Cached prefixes" in line)
    shared, chat, answer = lines[at + 1 : at + 4]
    assert ("×20" in shared, "Be brief. ⏎ You are a tutor." in shared) == (True, True)
    assert ("×5" in chat, "  <script>" in chat) == (True, True)
    assert ("×1" in answer, "    Answer 0" in answer) == (True, True)
    request = next(line for line in lines if line.startswith("● 1#1"))
    assert all(said in request for said in ("tutor", "400", "98%", "11 of 900", "4.5 s"))


def test_what_is_no_terminal_gets_one_picture(source) -> None:
    assert main(["top"]) == 0
    assert source.looks == 1


def test_it_looks_every_second_and_survives_a_restart(source, monkeypatch) -> None:
    out = io.StringIO()
    monkeypatch.setattr(
        top, "Console", lambda: Console(file=out, force_terminal=True, width=100, height=40)
    )
    naps = []

    def nap(seconds: float) -> None:
        naps.append(seconds)
        source.away = "lost the runtime" if len(naps) == 1 else None
        if len(naps) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", nap)
    assert main(["top"]) == 130
    assert (source.looks, naps) == (2, [1.0] * 3)
    assert "lost the runtime" in out.getvalue()


def test_without_a_runtime(source, capsys) -> None:
    assert main(["top", "nowhere"]) == 1
    assert "nobody listens at nowhere" in capsys.readouterr().err


@pytest.mark.parametrize("rows", [2, 10, 26, 200])
def test_it_keeps_to_its_lines(source, rows) -> None:
    past = Past()
    seen = eventloop.run(source.inspect(500))
    lines = text_of(screen(seen, past.take(seen.info), past, rows)).splitlines()
    assert len(lines) <= rows + top.ROWS_ABOVE
    nodes = sum("×" in line or "An old one." in line for line in lines)
    requests = sum(line.startswith(("●", "○")) for line in lines)
    assert nodes + requests == min(rows, 26 + 22)


def test_a_run_is_shown_below_the_one_that_it_continues() -> None:
    draw = random.Random(5)
    sizes, parents = {0: 1}, {0: -1}
    for node in range(1, 200):
        parents[node] = draw.choice([-1, *sizes])
        sizes[node] = draw.randint(1, 50)
    subtree = dict(sizes)
    for node in reversed(range(200)):
        if parents[node] >= 0:
            subtree[parents[node]] += subtree[node]
    nodes = [
        TreeNode(i, parents[i], 0, sizes[i], subtree[i], 0, idle=0.0, text=f"<{i}>", salted=False)
        for i in range(200)
    ]
    shown: list[int] = []
    for line in text_of(tree(nodes, 50, sum(sizes.values())), width=400).splitlines():
        node = int(line[line.index("<") + 1 : line.index(">")])
        chain = [node]
        while parents[chain[-1]] >= 0:
            chain.append(parents[chain[-1]])
        assert set(chain) <= {*shown, node}
        shown.append(node)
    assert sorted(subtree[i] for i in shown) == sorted(subtree.values())[-50:]


@pytest.mark.parametrize("width", [60, 80, 200])
def test_long_texts_leave_the_numbers_their_room(width) -> None:
    node = TreeNode(1, -1, 0, 1, 123_456, 7, idle=0.0, text="words " * 100, salted=False)
    lines = text_of(tree([node], 1, 123_456), width).splitlines()
    assert len(lines) == 1
    assert all(said in lines[0] for said in ("123,456", "█" * 12, "×7", "words"))


# ---------------------------------------------------------------------------- other people's text


@pytest.mark.parametrize(
    "evil", ["\x1b[31mred", "a\rb", "\x07", "\u202ereversed", "\x9b2J", "\u2028"]
)
def test_text_cannot_drive_the_terminal(evil) -> None:
    shown = plain(f"before {evil} after")
    assert shown.isprintable()
    assert shown.startswith("before")


def test_text_is_not_taken_for_rich_markup(source) -> None:
    node = TreeNode(1, -1, 0, 5, 5, 1, idle=0.0, text="[bold]x[/] \x1b]0;title\x07", salted=False)
    out = drawn(tree([node], 1, 5))
    assert "[bold]x[/]" in out
    assert "\x1b]0" not in out
