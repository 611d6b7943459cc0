"""Traces as HTML: one page that needs nothing else, or a fragment for a notebook.

Each trace becomes its numbers, a timeline with a row for each gen and select, and its text as a
tree of forks. It is plain HTML and CSS, without scripts.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from branchline.trace_style import STYLE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    Trace = dict[str, Any]
    Step = dict[str, Any]

MIN_SPAN = 1e-6  # seconds: a run that took no time still has a width


def page(traces: Sequence[Trace], title: str) -> str:
    """A whole page with traces one after the other."""
    body = "\n".join(_trace(trace) for trace in traces) or "<p>No program has run.</p>"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>{escape(title)}</title>{_style()}</head>\n"
        f'<body class="bl-page"><h1>{escape(title)}</h1>{_key()}\n{body}\n</body></html>\n'
    )


def fragment(trace: Trace) -> str:
    """One trace, with the style that it needs."""
    return _style() + _trace(trace)


def _style() -> str:
    return f"<style>{STYLE}</style>"


def _key() -> str:
    names = {
        "cached": "prompt tokens found in the cache",
        "computed": "prompt tokens computed",
        "generated": "tokens written",
        "before": "time to the first token",
        "writing": "time writing",
    }
    items = "".join(f'<span><i class="bl-{name}"></i>{text}</span>' for name, text in names.items())
    return f'<div class="bl-key">{items}</div>'


def _trace(trace: Trace) -> str:
    state = trace["state"]
    began, span = state["began"], max(state["ended"] - state["began"], MIN_SPAN)
    rows = "".join(_row(branch, step, began, span) for branch, step in _holes(state))
    return (
        '<div class="bl-trace">'
        f"<h2>{escape(trace['program'])} <small>on {escape(trace['model'])}, "
        f"{escape(trace['began_at'])}</small></h2>"
        f"<p>{_summary(state['usage'])}</p>{_tokens(state['usage'])}"
        f'<div class="bl-time">{rows}</div>{_text(state)}</div>'
    )


# ---------------------------------------------------------------------------- numbers


def _summary(usage: dict[str, Any]) -> str:
    prompt, cached = usage["prompt_tokens"], usage["cached_tokens"]
    share = f" ({cached / prompt:.0%})" if prompt else ""
    first = "" if usage["ttft"] is None else f", first token after {_seconds(usage['ttft'])}"
    return (
        f"{_seconds(usage['seconds'])}{first}, {_count(usage['requests'], 'request')}, "
        f"{prompt:,} prompt tokens, {cached:,} of them cached{share}, "
        f"{usage['generated_tokens']:,} written"
    )


def _tokens(usage: dict[str, Any]) -> str:
    """A bar of the tokens: cached, computed, written."""
    cached, written = usage["cached_tokens"], usage["generated_tokens"]
    parts = {
        "cached": cached,
        "computed": usage["prompt_tokens"] - cached,
        "generated": written,
    }
    total = max(sum(parts.values()), 1)
    bars = "".join(
        f'<i class="bl-{name}" style="width:{100 * tokens / total:.2f}%"'
        f' title="{tokens:,} {name}"></i>'
        for name, tokens in parts.items()
    )
    return f'<div class="bl-tokens">{bars}</div>'


def _seconds(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


# ---------------------------------------------------------------------------- the timeline


def _holes(state: dict[str, Any]) -> Iterator[tuple[str, Step]]:
    """Every gen and select with its branch, in the order of the text."""
    for step in state["steps"]:
        if step["kind"] in ("gen", "select"):
            yield state["branch"], step
        for branch in step.get("branches", ()):
            yield from _holes(branch)


def _row(branch: str, step: Step, origin: float, span: float) -> str:
    place = f"<small>{escape(branch)}</small> " if branch else ""
    bars = "".join(_bars(request, origin, span) for request in step["requests"])
    usage = _sum(step["requests"])
    depth = branch.count("/") + bool(branch)
    return (
        f'<div class="bl-name" style="padding-left:{depth}em">{place}{escape(_name(step))}</div>'
        f'<div class="bl-lane" title="{escape(_details(step))}">{bars}</div>{_tokens(usage)}'
    )


def _bars(request: dict[str, Any], origin: float, span: float) -> str:
    """A request on the timeline: before and after its first token, if that was seen."""
    began, ended = request["began"], request["ended"]
    first = ended if request["first_token"] is None else request["first_token"]
    kind = "failed" if request["error"] else "before"
    return _bar(kind, began, first, origin, span) + _bar("writing", first, ended, origin, span)


def _bar(kind: str, began: float, ended: float, origin: float, span: float) -> str:
    left, width = 100 * (began - origin) / span, 100 * (ended - began) / span
    return f'<i class="bl-{kind}" style="left:{left:.3f}%;width:{width:.3f}%"></i>'


def _sum(requests: Sequence[dict[str, Any]]) -> dict[str, Any]:
    names = ("prompt_tokens", "cached_tokens", "generated_tokens")
    return {name: sum(request[name] for request in requests) for name in names}


def _name(step: Step) -> str:
    return step["name"] or f"({step['kind']})"


def _details(step: Step) -> str:
    """What the pointer shows over a gen or select."""
    usage = _sum(step["requests"])
    prompt, cached = usage["prompt_tokens"], usage["cached_tokens"]
    took = f", {_seconds(step['ended'] - step['began'])}" if "ended" in step else ", not ended"
    lines = [
        f"{step['kind']} {_name(step)}{took}",
        f"{prompt:,} prompt tokens, {cached:,} cached, {usage['generated_tokens']:,} written",
        *(f"{key}: {value}" for key, value in step["settings"].items()),
        step["site"],
    ]
    return "\n".join(lines)


# ---------------------------------------------------------------------------- the text


def _text(state: dict[str, Any]) -> str:
    return f'<div class="bl-text">{"".join(map(_piece, state["steps"]))}</div>'


def _piece(step: Step) -> str:
    match step["kind"]:
        case "text":
            return escape(step["text"])
        case "role" | "role_end":
            return f'<span class="bl-template">{escape(step["text"])}</span>'
        case "gen" | "select":
            return _hole(step)
        case "reasoning":
            return f"<details><summary>reasoning</summary>{escape(step['text'])}</details>"
        case "fork":
            return _fork(step)
        case "join":
            names = ", ".join(step["names"]) or "text"
            return f'<div class="bl-note">join of fork {step["ordinal"]}: {escape(names)}</div>'
        case "error":
            return _error(step["error"])
        case _:
            return ""  # a scope's text is there already


def _hole(step: Step) -> str:
    text = escape(step.get("text", "")) or "&hairsp;"
    failed = _error(step["error"]) if "error" in step else ""
    return f'<mark class="bl-{step["kind"]}" title="{escape(_details(step))}">{text}</mark>{failed}'


def _error(message: str) -> str:
    return f'<div class="bl-error">{escape(message)}</div>'


def _fork(step: Step) -> str:
    branches = "".join(
        f"<details open><summary>{escape(branch['branch'])}: {_summary(branch['usage'])}</summary>"
        f"{_text(branch)}</details>"
        for branch in step["branches"]
    )
    return f'<div class="bl-fork">{branches}</div>'
