"""Branchline's language: programs that call a model many times, and what they run on.

A program is a function of a state `s` with holes in it: `gen` writes, `select` picks by likelihood,
`fork` goes on in several ways. It runs on a `Runtime` (a process of its own), on an `Engine` (in
this process) or on what `connect` finds. Importing this package loads neither torch nor a
transport; those come with the first use of what needs them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from branchline import events
from branchline.aio import AsyncProgramState
from branchline.async_program import AsyncProgram
from branchline.choices import (
    ChoicesDecision,
    ChoicesSamplingMethod,
    byte_length_normalized,
    greedy_token_selection,
    token_length_normalized,
    total_likelihood,
    unconditional_likelihood_normalized,
)
from branchline.choosing import select
from branchline.default_backend import set_default_backend, using
from branchline.errors import (
    BranchlineError,
    InvalidRequest,
    ModelError,
    ProtocolError,
    RequestAborted,
    RequestTimeout,
    RuntimeFailed,
    RuntimeOverloaded,
    RuntimeUnavailable,
)
from branchline.grammar import Grammar
from branchline.group import AsyncProgramStateGroup, ProgramStateGroup
from branchline.language import gen, gen_int, gen_string
from branchline.program import Program, function
from branchline.program_error import ProgramError
from branchline.reasoning import ReasoningFormat, separate_reasoning
from branchline.retry import Retry
from branchline.sampling_params import SamplingParams
from branchline.state import ProgramState
from branchline.tool import Tool, ToolCall
from branchline.tool_results import call_tools, call_tools_async
from branchline.tools import describe_tools
from branchline.tracing import Trace
from branchline.turns import (
    assistant,
    assistant_begin,
    assistant_end,
    system,
    system_begin,
    system_end,
    user,
    user_begin,
    user_end,
)
from branchline.typed import InvalidValue

if TYPE_CHECKING:
    from branchline.client import connect
    from branchline.launcher import Runtime
    from branchline.mock import Mock
    from branchline.mock_script import Reply
    from branchline.openai_backend import OpenAI
    from branchline.runtime import Engine

__all__ = [
    "AsyncProgram",
    "AsyncProgramState",
    "AsyncProgramStateGroup",
    "BranchlineError",
    "ChoicesDecision",
    "ChoicesSamplingMethod",
    "Engine",
    "Grammar",
    "InvalidRequest",
    "InvalidValue",
    "Mock",
    "ModelError",
    "OpenAI",
    "Program",
    "ProgramError",
    "ProgramState",
    "ProgramStateGroup",
    "ProtocolError",
    "ReasoningFormat",
    "Reply",
    "RequestAborted",
    "RequestTimeout",
    "Retry",
    "Runtime",
    "RuntimeFailed",
    "RuntimeOverloaded",
    "RuntimeUnavailable",
    "SamplingParams",
    "Tool",
    "ToolCall",
    "Trace",
    "assistant",
    "assistant_begin",
    "assistant_end",
    "byte_length_normalized",
    "call_tools",
    "call_tools_async",
    "connect",
    "describe_tools",
    "events",
    "function",
    "gen",
    "gen_int",
    "gen_string",
    "greedy_token_selection",
    "select",
    "separate_reasoning",
    "set_default_backend",
    "system",
    "system_begin",
    "system_end",
    "token_length_normalized",
    "total_likelihood",
    "unconditional_likelihood_normalized",
    "user",
    "user_begin",
    "user_end",
    "using",
]

# Where the names come from that need more than the language does.
_LAZY = {
    "Engine": "branchline.runtime",
    "Mock": "branchline.mock",
    "OpenAI": "branchline.openai_backend",
    "Reply": "branchline.mock_script",
    "Runtime": "branchline.launcher",
    "connect": "branchline.client",
}


def __getattr__(name: str) -> Any:
    """A name that is loaded at its first use."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value
