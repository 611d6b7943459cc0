"""The trace of a state: what happened, as plain data that `json.dumps` takes.

::

    {"format": 1, "program": "lesson", "model": "smollm2", "began_at": "2026-01-31T12:00:00+00:00",
     "state": {"branch": "", "began": 0.0, "ended": 1.5, "usage": {…}, "steps": [
         {"kind": "text", "at": 0.0, "text": "Q: "},
         {"kind": "gen", "name": "x", "began": 0.0, "ended": 1.2, "text": "…", …},
         {"kind": "fork", "at": 1.2, "ordinal": 0, "branches": [{"branch": "0.0", …}, …]},
         {"kind": "join", "at": 1.5, "mode": "gather_variable", "names": ["y"]}]}}

Times are seconds since the run began.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from branchline.events import (
    Failed,
    Forked,
    Joined,
    RoleBegan,
    RoleEnded,
    TextAdded,
    Used,
    VariableEnded,
    VariableStarted,
)
from branchline.tree import grow
from branchline.usage import branch_name, state_usage

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from branchline.events import Event
    from branchline.executor import Executor
    from branchline.tree import Tree
    from branchline.usage import Usage

FORMAT = 1
# What of a variable's meta info a trace keeps: the rest is long, or is there already.
_KEPT_META = ("finish_reason", "note", "seed", "probabilities", "normalized_prompt_logprobs")


def trace_of(executor: Executor) -> dict[str, Any]:
    """The trace of a state and of all below it, as far as it has come."""
    run, log = executor.run, executor.record.log
    tree = grow(log.feed.items())[executor.record.branch]
    return {
        "format": FORMAT,
        "program": run.program,
        "model": run.backend.card.name,
        "began_at": datetime.fromtimestamp(log.began_at, UTC).isoformat(timespec="milliseconds"),
        "state": _state(tree),
    }


def _state(tree: Tree) -> dict[str, Any]:
    return {
        "branch": branch_name(tree.branch),
        "began": tree.began,
        "ended": tree.ended,
        "usage": _numbers(state_usage(tree)),
        "steps": list(_steps(tree)),
    }


def _steps(tree: Tree) -> Iterator[dict[str, Any]]:
    """Each event that is no part of a gen or select, and each of those as one step."""
    holes = tree.holes()
    skipped = 0  # events that the last hole has
    for event in tree.events:
        if skipped:
            skipped -= 1
        elif isinstance(event, VariableStarted):
            hole = next(holes)
            skipped = len(hole) - 1
            yield _hole(event, hole)
        else:
            yield _step(event, tree)


def _step(event: Event, tree: Tree) -> dict[str, Any]:
    match event:
        case TextAdded():
            return {"kind": "text", "at": event.at, "text": event.text}
        case RoleBegan():
            return {"kind": "role", "at": event.at, "role": event.role, "text": event.text}
        case RoleEnded():
            return {"kind": "role_end", "at": event.at, "role": event.role, "text": event.text}
        case VariableEnded():
            return {"kind": event.kind, "at": event.at, "name": event.name, "text": event.text}
        case Forked():
            branches = [_state(branch) for branch in tree.forks[event.ordinal]]
            return {
                "kind": "fork",
                "at": event.at,
                "ordinal": event.ordinal,
                "branches": branches,
            }
        case Joined():
            return {
                "kind": "join",
                "at": event.at,
                "ordinal": event.ordinal,
                "mode": event.mode,
                "names": list(event.names),
            }
        case Failed():
            return {"kind": "error", "at": event.at, "error": str(event.error)}
        case _:
            raise AssertionError(f"{event!r} belongs to a gen or select")


def _hole(start: VariableStarted, hole: Sequence[Event]) -> dict[str, Any]:
    """A gen or select; without `ended` it is still going on."""
    step: dict[str, Any] = {
        "kind": start.kind,
        "name": start.name,
        "site": str(start.site),
        "settings": plain(start.settings),
        "began": start.at,
        "requests": [_request(event) for event in hole if isinstance(event, Used)],
    }
    match hole[-1]:
        case VariableEnded() as end:
            step |= {"ended": end.at, "text": end.text, "value": plain(end.value)}
            step |= {"meta": _meta(end.meta)} if end.meta is not None else {}
            step |= {"error": str(end.error)} if end.error is not None else {}
        case Failed() as end:
            step |= {"ended": end.at, "text": "", "error": str(end.error)}
    return step


def _request(used: Used) -> dict[str, Any]:
    return {
        "rid": used.rid,
        "began": used.at - used.seconds,
        "first_token": used.first_token_at,
        "ended": used.at,
        "prompt_tokens": used.prompt_tokens,
        "cached_tokens": used.cached_tokens,
        "generated_tokens": used.generated_tokens,
        "forced_tokens": used.forced_tokens,
        "error": used.error,
    }


def _numbers(usage: Usage) -> dict[str, Any]:
    return {
        "requests": usage.requests,
        "prompt_tokens": usage.prompt_tokens,
        "cached_tokens": usage.cached_tokens,
        "generated_tokens": usage.generated_tokens,
        "forced_tokens": usage.forced_tokens,
        "seconds": usage.seconds,
        "ttft": usage.ttft,
    }


def _meta(meta: Any) -> Any:
    if isinstance(meta, list):
        return [_meta(item) for item in meta]
    return {key: plain(meta[key]) for key in _KEPT_META if key in meta}


def plain(value: Any) -> Any:
    """The value as JSON has it; what JSON has not, as Python shows it."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    return repr(value)
