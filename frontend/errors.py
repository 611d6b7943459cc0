"""The errors a user can meet. Each message names the value, the rule and the way out."""

from __future__ import annotations


class BranchlineError(Exception):
    """The root of every error that Branchline raises on purpose."""


class InvalidRequest(BranchlineError, ValueError):
    """The request breaks a rule; it was refused and nothing else was disturbed."""


class RequestAborted(BranchlineError):
    """The request was aborted before it had finished."""


class RequestTimeout(BranchlineError, TimeoutError):
    """A request, or the run it belongs to, took longer than its `timeout`; it was aborted."""


class RuntimeUnavailable(BranchlineError, ConnectionError):
    """The runtime could not be reached, did not start in time, or was lost."""


class RuntimeOverloaded(RuntimeUnavailable):
    """The runtime has as many requests as it takes; the same may succeed later."""


class RuntimeFailed(BranchlineError):
    """The runtime met a bug of its own; its log has the traceback."""


class ModelError(BranchlineError):
    """A model, tokenizer or weight file cannot be served; the message names what and why."""


class ProtocolError(BranchlineError):
    """A frame that is not a message of this protocol version."""
