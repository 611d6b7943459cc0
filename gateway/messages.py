"""The messages of a chat and the tools it offers, as they are sent."""

from __future__ import annotations

from typing import Any, Literal

from branchline.gateway.errors import refused
from branchline.gateway.fields import Body


class TextPart(Body):
    """A part of a content. Images and sounds are refused: no model here knows them."""

    type: Literal["text"]
    text: str


class CalledFunction(Body):
    """What was called, and with what: JSON as text."""

    name: str
    arguments: str


class ToolCall(Body):
    """A call that the assistant made."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class Message(Body):
    """One message. Fields that the client library sends back empty may be there, empty."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    refusal: None = None
    audio: None = None
    function_call: None = None
    annotations: list[None] | None = None

    def as_data(self) -> dict[str, Any]:
        """The message as a `Conversation` has it. One that says nothing at all is refused."""
        if self.content is None and not (self.role == "assistant" and self.tool_calls):
            raise refused(f"messages: a message of the {self.role} needs content", "messages")
        data: dict[str, Any] = {"role": self.role, "content": self.text()}
        if self.name is not None:
            data["name"] = self.name
        if self.tool_calls:
            data["tool_calls"] = [call.model_dump() for call in self.tool_calls]
        if self.tool_call_id is not None:
            data["tool_call_id"] = self.tool_call_id
        return data

    def text(self) -> str | None:
        """What it says; parts are lines."""
        if isinstance(self.content, list):
            return "\n".join(part.text for part in self.content)
        return self.content


class Function(Body):
    """A function that may be called; its parameters are a JSON schema."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None  # arguments always follow the schema


class Tool(Body):
    """A tool that may be called."""

    type: Literal["function"]
    function: Function

    @property
    def schema_(self) -> dict[str, Any]:
        """What the arguments must match."""
        return self.function.parameters or {"type": "object", "properties": {}}

    def as_data(self) -> dict[str, Any]:
        """The tool as a `Conversation` has it."""
        function = self.function.model_dump(exclude_none=True, exclude={"strict"})
        return {"type": "function", "function": {**function, "parameters": self.schema_}}


class NamedFunction(Body):
    """The name of a function."""

    name: str


class NamedTool(Body):
    """The one tool that must be called."""

    type: Literal["function"]
    function: NamedFunction


ToolChoice = Literal["none", "auto", "required"] | NamedTool


def offered(tools: list[Tool] | None, choice: ToolChoice | None) -> list[Tool]:
    """The tools that may be called; of a named one only that."""
    if not tools:
        if choice not in (None, "none", "auto"):
            raise refused("tool_choice: no tools are given", "tool_choice")
        return []
    names = [tool.function.name for tool in tools]
    if len(set(names)) < len(names):
        raise refused(f"tools: two have the same name, of {', '.join(names)}", "tools")
    if isinstance(choice, NamedTool):
        if choice.function.name not in names:
            raise refused(f"tool_choice: {choice.function.name!r} is none of the tools")
        return [tool for tool in tools if tool.function.name == choice.function.name]
    return [] if choice == "none" else tools
