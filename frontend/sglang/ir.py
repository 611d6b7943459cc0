"""The nodes of a program under SGLang's names, and its constants."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from branchline import reasoning
from branchline.nodes import (
    ExprList,
    Gen,
    Node,
    RoleBegin,
    RoleEnd,
    ScopeBegin,
    ScopeEnd,
    Select,
    Text,
)
from branchline.settings import sampling_changes
from branchline.sglang.params import Params, dtype_name, patterns
from branchline.sglang.regexes import REGEX_BOOL, REGEX_FLOAT, REGEX_INT, REGEX_STR, REGEX_STRING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "REGEX_BOOL",
    "REGEX_FLOAT",
    "REGEX_INT",
    "REGEX_STR",
    "REGEX_STRING",
    "SglConstantText",
    "SglExpr",
    "SglExprList",
    "SglGen",
    "SglRoleBegin",
    "SglRoleEnd",
    "SglSamplingParams",
    "SglSelect",
    "SglSeparateReasoning",
    "SglVarScopeBegin",
    "SglVarScopeEnd",
]

SglExpr = Node
SglConstantText = Text
SglRoleBegin = RoleBegin
SglRoleEnd = RoleEnd
SglSelect = Select
SglVarScopeBegin = ScopeBegin
SglVarScopeEnd = ScopeEnd
SglSamplingParams = Params


class _AnyGen(type):
    """Makes every gen an instance of `SglGen`."""

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, Gen)


class SglGen(metaclass=_AnyGen):
    """SGLang's name for a gen, with its order of arguments; making one gives a `Gen`."""

    def __new__(  # type: ignore[misc]
        cls,
        name: str | None = None,
        max_new_tokens: int | None = None,
        min_new_tokens: int | None = None,
        n: int | None = None,
        stop: str | Sequence[str] | None = None,
        stop_token_ids: Sequence[int] | None = None,
        stop_regex: str | Sequence[str] | None = None,
        **given: Any,
    ) -> Gen:
        """A gen; what is None is as the run has it."""
        given.pop("return_text_in_logprobs", None)  # where a text is known it is always there
        if given.get("dtype") is not None:
            given["dtype"] = dtype_name(given["dtype"])
        changes: Mapping[str, Any] = sampling_changes(
            given
            | {
                "max_tokens": max_new_tokens,
                "min_tokens": min_new_tokens,
                "n": n,
                "stop": stop,
                "stop_token_ids": stop_token_ids,
                "stop_regex": patterns(stop_regex),
            }
        )
        return Gen(name, MappingProxyType(dict(changes)))


class SglExprList(ExprList):
    """Nodes one after the other, under SGLang's attribute too."""

    __slots__ = ()

    @property
    def expr_list(self) -> list[Node]:
        """The nodes."""
        return list(self.items)


class SglSeparateReasoning(Node):
    """The mark behind an expression that its reasoning is to be kept apart."""

    __slots__ = ("expr", "model_type", "name")

    def __init__(self, model_type: str, expr: Node) -> None:
        gens = [leaf for leaf in expr.leaves() if isinstance(leaf, Gen)]
        if not gens or gens[0].name is None:
            raise ValueError("separate_reasoning needs an expression with a named gen")
        self.model_type = model_type
        self.expr = expr
        self.name = f"{gens[0].name}{reasoning.REASONING_SUFFIX}"

    def leaves(self) -> tuple[Node, ...]:
        """None: it says something about its neighbour."""
        return ()

    def __repr__(self) -> str:
        return f"SeparateReasoning(model_type={self.model_type}, name={self.name})"


class ReasoningList(SglExprList):
    """An expression and its mark; what it appends is known when it is appended."""

    __slots__ = ()

    def leaves(self) -> tuple[Node, ...]:
        """The expression's, each gen with the format of its reasoning.

        Raises:
            InvalidRequest: no model type of that name is known.
        """
        expr, mark = self.items
        assert isinstance(mark, SglSeparateReasoning), mark
        return reasoning.separate_reasoning(expr, mark.model_type).leaves()
