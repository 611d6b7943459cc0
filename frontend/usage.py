"""What a state, each of its gens and each of its branches cost: sums over the log of its run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from branchline.events import Used, VariableStarted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from branchline.events import Branch, Event
    from branchline.tree import Tree


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What requests cost.

    Each of the `n` texts of a gen, and each choice of a select, is a sequence of its own: it counts
    with its whole prompt, and most of that is cached.

    Attributes:
        requests: that were sent, those that failed included.
        prompt_tokens: of all their prompts.
        cached_tokens: of those, not computed because they had been before.
        generated_tokens: that the model wrote.
        forced_tokens: of those, the only ones that a grammar left, taken without a step each.
        seconds: from the first beginning to the last end.
        ttft: seconds from the beginning to the first token that was seen; None if none was: only
            runs that stream or are traced see their tokens come.
    """

    requests: int
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    forced_tokens: int
    seconds: float
    ttft: float | None

    @property
    def computed_tokens(self) -> int:
        """The tokens of prompts that were computed."""
        return self.prompt_tokens - self.cached_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class GenUsage(Usage):
    """What one gen or select cost."""

    name: str | None
    branch: Branch  # of the state that it is in


@dataclass(frozen=True, slots=True, kw_only=True)
class StateUsage(Usage):
    """What a state cost, with its branches.

    Printed, it is a table.

    Attributes:
        gens: its own gens and selects, in order.
        forks: for each of its forks, the usage of each branch.
    """

    gens: tuple[GenUsage, ...]
    forks: tuple[tuple[StateUsage, ...], ...]

    def __getitem__(self, name: str) -> GenUsage:
        """The usage of the last gen or select of that name; KeyError if there is none."""
        for gen in reversed(self.gens):
            if gen.name == name:
                return gen
        raise KeyError(name)

    def __str__(self) -> str:
        rows = [_HEAD, *self._rows(), _row("total", self)]
        if not self.forced_tokens:
            rows = [(*row[:_FORCED], *row[_FORCED + 1 :]) for row in rows]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join(
            "  ".join(
                cell.rjust(width) if place else cell.ljust(width)
                for place, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
            for row in rows
        )

    def _rows(self) -> Iterator[tuple[str, ...]]:
        for gen in self.gens:
            place = f" [{branch_name(gen.branch)}]" if gen.branch else ""
            yield _row(f"{gen.name or '(no name)'}{place}", gen)
        for fork in self.forks:
            for branch in fork:
                yield from branch._rows()


_HEAD = ("", "requests", "prompt", "cached", "generated", "forced", "first token", "seconds")
_FORCED = _HEAD.index("forced")  # a column that is there only where something was


def branch_name(branch: Branch) -> str:
    """`0.2` for the third branch of the first fork; `0.2/1.0` for a branch of that."""
    pairs = zip(branch[::2], branch[1::2], strict=True)
    return "/".join(f"{ordinal}.{index}" for ordinal, index in pairs)


def state_usage(tree: Tree) -> StateUsage:
    """What a state and all below it cost."""
    gens = tuple(_gen_usage(hole, tree.branch) for hole in tree.holes())
    forks = tuple(
        tuple(state_usage(branch) for branch in fork) for _, fork in sorted(tree.forks.items())
    )
    parts = [*gens, *(branch for fork in forks for branch in fork)]
    tokens = list(_first_tokens(tree))
    return StateUsage(
        requests=sum(part.requests for part in parts),
        prompt_tokens=sum(part.prompt_tokens for part in parts),
        cached_tokens=sum(part.cached_tokens for part in parts),
        generated_tokens=sum(part.generated_tokens for part in parts),
        forced_tokens=sum(part.forced_tokens for part in parts),
        seconds=tree.ended - tree.began,
        ttft=min(tokens) - tree.began if tokens else None,
        gens=gens,
        forks=forks,
    )


def _gen_usage(hole: Sequence[Event], branch: Branch) -> GenUsage:
    start = hole[0]
    assert isinstance(start, VariableStarted)
    used = [event for event in hole if isinstance(event, Used)]
    tokens = [event.first_token_at for event in used if event.first_token_at is not None]
    return GenUsage(
        name=start.name,
        branch=branch,
        requests=len(used),
        prompt_tokens=sum(event.prompt_tokens for event in used),
        cached_tokens=sum(event.cached_tokens for event in used),
        generated_tokens=sum(event.generated_tokens for event in used),
        forced_tokens=sum(event.forced_tokens for event in used),
        seconds=hole[-1].at - start.at,
        ttft=min(tokens) - start.at if tokens else None,
    )


def _first_tokens(tree: Tree) -> Iterator[float]:
    """When the requests of a state and of all below it brought their first tokens."""
    for event in tree.events:
        if isinstance(event, Used) and event.first_token_at is not None:
            yield event.first_token_at
    for fork in tree.forks.values():
        for branch in fork:
            yield from _first_tokens(branch)


def _row(name: str, usage: Usage) -> tuple[str, ...]:
    first = "" if usage.ttft is None else f"{usage.ttft:.3f}"
    counts = (
        *(usage.requests, usage.prompt_tokens, usage.cached_tokens),
        *(usage.generated_tokens, usage.forced_tokens),
    )
    return (name, *map(str, counts), first, f"{usage.seconds:.3f}")
