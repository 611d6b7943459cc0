"""What SGLang's tracer gives of a program: its nodes, and a print of them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from branchline.tracing import Trace

if TYPE_CHECKING:
    from branchline.nodes import Node


@dataclass(frozen=True, slots=True)
class Traced(Trace):
    """A trace, with the methods of SGLang's."""

    @classmethod
    def of(cls, trace: Trace) -> Traced:
        """The same trace."""
        return cls(**{field.name: getattr(trace, field.name) for field in fields(trace)})

    @property
    def last_node(self) -> LastNode:
        """Where a print of the program starts from."""
        return LastNode(self)

    def flatten_nodes(self) -> list[Node]:
        """All nodes: the program's, then those of each branch."""
        return _nodes(self)


@dataclass(frozen=True, slots=True)
class LastNode:
    """The end of a traced program."""

    trace: Trace

    def print_graph_dfs(self) -> None:
        """Print the program, a node a line, its branches indented."""
        print(self.trace)


def _nodes(trace: Trace) -> list[Node]:
    return [*trace.nodes, *(node for branch in trace.branches for node in _nodes(branch))]
