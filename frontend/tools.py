"""Tools in a gen: what a model is told of them, and how its calls (`call_grammar`) are read."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from branchline.call_grammar import BEGIN, call_grammar, manual
from branchline.errors import InvalidRequest
from branchline.tool import Tool, ToolCall
from branchline.typed import InvalidValue

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from branchline.grammar import Grammar

AUTO, REQUIRED = "auto", "required"


@dataclass(frozen=True, slots=True)
class Toolbox:
    """The tools of a gen.

    Attributes:
        tools: by name.
        choice: "auto" (calls, or text of the model's own, or both), "required" (calls only) or the
            name of a tool (one call of it).
        parallel: whether several calls may follow each other.
    """

    tools: dict[str, Tool]
    choice: str = AUTO
    parallel: bool = True

    @classmethod
    def of(cls, functions: Sequence[Callable[..., Any]], choice: str, *, parallel: bool) -> Toolbox:
        """The tools that functions are.

        Raises:
            InvalidRequest: one of them cannot be a tool, two have the same name, there are none, or
                the choice is not among them.
        """
        tools = _by_name(functions)
        if choice in tools:
            return cls({choice: tools[choice]}, REQUIRED, parallel=False)
        if choice not in (AUTO, REQUIRED):
            raise InvalidRequest(
                f"tool_choice={choice!r}: must be {AUTO}, {REQUIRED} or one of {', '.join(tools)}"
            )
        return cls(tools, choice, parallel)

    def grammar(self) -> Grammar:
        """What a model may write."""
        schemas = {name: tool.enforced for name, tool in self.tools.items()}
        return call_grammar(schemas, free=self.choice == AUTO, several=self.parallel)

    def parse(self, text: str) -> list[ToolCall]:
        """The calls in a text, in order.

        Raises:
            InvalidValue: a call is broken or of no tool here, or there is none and one is required.
        """
        calls: list[ToolCall] = []
        at = text.find(BEGIN)
        while at >= 0:
            start = at + len(BEGIN)
            start += len(text[start:]) - len(text[start:].lstrip())
            try:
                said, end = json.JSONDecoder().raw_decode(text, start)
            except ValueError as error:
                raise InvalidValue(
                    text, list[ToolCall], f"a call that is no JSON: {error}"
                ) from None
            calls.append(self._call(said, text))
            at = text.find(BEGIN, end)
        if not calls and self.choice == REQUIRED:
            raise InvalidValue(text, list[ToolCall], "no call of a tool, and one is required")
        return calls

    def _call(self, said: Any, text: str) -> ToolCall:
        name = said.get("name") if isinstance(said, dict) else None
        tool = self.tools.get(name) if isinstance(name, str) else None
        if tool is None:
            known = ", ".join(self.tools)
            raise InvalidValue(text, list[ToolCall], f"a call of {name!r}; known are {known}")
        try:
            arguments = tool.arguments(said.get("arguments", {}))
        except InvalidRequest as error:
            raise InvalidValue(text, list[ToolCall], str(error)) from None
        return ToolCall(tool.name, arguments, tool)


def describe_tools(functions: Sequence[Callable[..., Any]]) -> str:
    """What to tell a model of its tools, in a system turn for example.

    Raises:
        InvalidRequest: one of them cannot be a tool.
    """
    return manual(
        {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
        for tool in _by_name(functions).values()
    )


def _by_name(functions: Sequence[Callable[..., Any]]) -> dict[str, Tool]:
    if not isinstance(functions, list | tuple) or not functions:
        raise InvalidRequest(f"tools={functions!r}: must be a list of at least one function")
    tools = [Tool.of(function) for function in functions]
    named = {tool.name: tool for tool in tools}
    if len(named) < len(tools):
        raise InvalidRequest(
            f"tools: {', '.join(tool.name for tool in tools)}: the names must differ"
        )
    return named
