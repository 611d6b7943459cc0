"""Every error in OpenAI's shape: `{"error": {"message", "type", "param", "code"}}`."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from branchline.errors import (
    BranchlineError,
    InvalidRequest,
    ProtocolError,
    RequestTimeout,
    RuntimeOverloaded,
    RuntimeUnavailable,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

INVALID = "invalid_request_error"
CLIENT_GONE = 499  # nobody reads it but the log

# What the runtime's errors are to an HTTP client; the first that fits. A time limit is a 408, not
# a 504: the server is well, and the request was let go as its sender or the operator wished.
_KINDS: tuple[tuple[type[BranchlineError], int, str, str], ...] = (
    (InvalidRequest, 400, INVALID, ""),
    (ProtocolError, 400, INVALID, ""),
    (RequestTimeout, 408, "timeout_error", "timeout"),
    (RuntimeOverloaded, 429, "rate_limit_error", "overloaded"),
    (RuntimeUnavailable, 503, "server_error", "runtime_unavailable"),
)
_KIND = re.compile(r"[A-Z].*|.*\[.*|str|int")  # the name of a type, not of a field
_NAMED = re.compile(r"(\w+)[=\[]")  # how our messages begin that name a field


class ApiError(Exception):
    """An answer that is an error."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = INVALID,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"message": message, "type": kind, "param": param, "code": code}
        self.headers = dict(headers or {})

    @property
    def text(self) -> str:
        """The answer's body."""
        return json.dumps({"error": self.body})

    def response(self) -> Response:
        """The answer."""
        return json_text(self.text, self.status, self.headers)


def json_text(text: str, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """An answer whose body is JSON already."""
    return Response(text, status, headers, "application/json")


def refused(message: str, param: str | None = None) -> ApiError:
    """A request that breaks a rule; the message may itself begin with the field it is about."""
    named = _NAMED.match(message)
    return ApiError(400, message, param=param or (named.group(1) if named else None))


def as_api_error(error: BranchlineError, retry_after: int = 1) -> ApiError:
    """What an error of the runtime is to an HTTP client."""
    message = str(error)
    for raised, status, kind, code in _KINDS:
        if isinstance(error, raised):
            if kind == INVALID:
                return refused(message)
            later = issubclass(raised, RuntimeUnavailable)
            headers = {"Retry-After": str(retry_after)} if later else {}
            return ApiError(status, message, kind=kind, code=code, headers=headers)
    return ApiError(500, message, kind="server_error", code="internal_error")


def install(app: FastAPI, retry_after: int) -> None:
    """Let every error that an app meets be answered in this shape."""

    async def known(_: Request, error: Exception) -> Response:
        assert isinstance(error, ApiError)
        return error.response()

    async def of_runtime(_: Request, error: Exception) -> Response:
        assert isinstance(error, BranchlineError)
        return as_api_error(error, retry_after).response()

    async def of_body(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return _explain(error.errors()).response()

    async def of_http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        message = f"{request.method} {request.url.path}: {error.detail}"
        return ApiError(error.status_code, message, headers=error.headers).response()

    async def gone(_: Request, __: Exception) -> Response:
        return Response(status_code=CLIENT_GONE)

    async def bug(_: Request, error: Exception) -> Response:
        message = f"{type(error).__name__}: a bug of the gateway; its log has the traceback"
        return ApiError(500, message, kind="server_error", code="internal_error").response()

    app.add_exception_handler(ApiError, known)
    app.add_exception_handler(BranchlineError, of_runtime)
    app.add_exception_handler(RequestValidationError, of_body)
    app.add_exception_handler(HTTPException, of_http)
    app.add_exception_handler(ClientDisconnect, gone)
    app.add_exception_handler(Exception, bug)


def _explain(faults: Sequence[Mapping[str, Any]]) -> ApiError:
    """A body that is not what the route takes: the first field that is wrong, and how."""
    first = faults[0]
    if first["type"] == "json_invalid":
        return ApiError(400, f"the body is not JSON: {first['ctx']['error']}")
    where = _path(first)
    if not where:
        return ApiError(400, "send a JSON object, with Content-Type: application/json")
    if first["type"] == "extra_forbidden":
        what = "not a field that is supported here; leave it out"
    else:  # where a field may be of several kinds there is a fault for each: all are told
        alike = [fault["msg"] for fault in faults if _path(fault)[: len(where)] == where]
        what = " or ".join(dict.fromkeys(alike))
    return ApiError(400, f"{'.'.join(where)}: {what}", param=where[0])


def _path(fault: Mapping[str, Any]) -> list[str]:
    """Where in the body a fault is: names and indices, without the kinds that were tried."""
    parts = [str(part) for part in fault["loc"][1:]]
    return [part for part in parts if not _KIND.fullmatch(part)]
