"""Branchline's language: programs that call a model many times, and what they run on.

A program is a function of a state `s` with holes in it: `gen` writes, `select` picks by likelihood,
`fork` goes on in several ways. It runs on a `Runtime` (a process of its own), on an `Engine` (in
this process) or on what `connect` finds. Importing this package loads neither torch nor a
transport; those come with the first use of what needs them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from branchline.choices import (
    ChoicesDecision,
    ChoicesSamplingMethod,
    greedy_token_selection,
    token_length_normalized,
    unconditional_likelihood_normalized,
)
from branchline.default_backend import set_default_backend
from branchline.errors import (
    BranchlineError,
    InvalidRequest,
    ModelError,
    ProtocolError,
    RequestAborted,
    RuntimeFailed,
    RuntimeUnavailable,
)
from branchline.group import ProgramStateGroup
from branchline.language import (
    assistant,
    assistant_begin,
    assistant_end,
    gen,
    select,
    system,
    system_begin,
    system_end,
    user,
    user_begin,
    user_end,
)
from branchline.program import Program, function
from branchline.program_error import ProgramError
from branchline.sampling_params import SamplingParams
from branchline.state import ProgramState

if TYPE_CHECKING:
    from branchline.client import connect
    from branchline.launcher import Runtime
    from branchline.runtime import Engine

__all__ = [
    "BranchlineError",
    "ChoicesDecision",
    "ChoicesSamplingMethod",
    "Engine",
    "InvalidRequest",
    "ModelError",
    "Program",
    "ProgramError",
    "ProgramState",
    "ProgramStateGroup",
    "ProtocolError",
    "RequestAborted",
    "Runtime",
    "RuntimeFailed",
    "RuntimeUnavailable",
    "SamplingParams",
    "assistant",
    "assistant_begin",
    "assistant_end",
    "connect",
    "function",
    "gen",
    "greedy_token_selection",
    "select",
    "set_default_backend",
    "system",
    "system_begin",
    "system_end",
    "token_length_normalized",
    "unconditional_likelihood_normalized",
    "user",
    "user_begin",
    "user_end",
]

# Where the names come from that need more than the language does.
_LAZY = {
    "Engine": "branchline.runtime",
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
