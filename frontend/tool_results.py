"""Runs the calls that a model wrote, and tells it what came of them."""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from branchline.errors import InvalidRequest
from branchline.nodes import as_node
from branchline.turns import turn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from branchline.aio import AsyncProgramState
    from branchline.state import ProgramState
    from branchline.tool import ToolCall

_ANY: TypeAdapter[Any] = TypeAdapter(Any)


def call_tools(
    s: ProgramState, calls: Sequence[ToolCall], *, role: str | None = "user"
) -> list[Any]:
    """Run calls one after the other, and append what they return, in a turn of its own.

    A function that raises does not end the program: the model is told, and the exception is in the
    list. Without calls nothing is appended.

    Args:
        s: the state that the calls were written in; its turn must have ended.
        calls: what `gen(tools=…)` gave.
        role: whose turn it is; None appends bare text.

    Returns:
        What each call returned.

    Raises:
        InvalidRequest: a function is async: `await call_tools_async(s, calls)`.
    """
    for call in calls:
        if inspect.iscoroutinefunction(call.tool.function):
            raise InvalidRequest(f"{call.name} is async: await call_tools_async(s, calls) instead")
    results = [_run(call) for call in calls]
    _tell(s, results, role)
    return results


async def call_tools_async(
    s: AsyncProgramState, calls: Sequence[ToolCall], *, role: str | None = "user"
) -> list[Any]:
    """`call_tools` for an async program: all at the same time, what is not async in threads."""
    results = await asyncio.gather(*map(_await, calls))
    _tell(s, results, role)
    return results


def _run(call: ToolCall) -> Any:
    try:
        return call.run()
    except Exception as error:  # noqa: BLE001 - the model is told
        return error


async def _await(call: ToolCall) -> Any:
    if not inspect.iscoroutinefunction(call.tool.function):
        return await asyncio.to_thread(_run, call)
    try:
        return await call.run()
    except Exception as error:  # noqa: BLE001 - the model is told
        return error


def _tell(s: ProgramState | AsyncProgramState, results: Sequence[Any], role: str | None) -> None:
    if results:
        said = "\n".join(f"<tool_response>\n{_said(one)}\n</tool_response>" for one in results)
        s._executor.submit(as_node(said) if role is None else turn(role, said))


def _said(result: Any) -> str:
    if isinstance(result, Exception):
        return f"error: {type(result).__name__}: {result}"
    return result if isinstance(result, str) else _ANY.dump_json(result, fallback=str).decode()
