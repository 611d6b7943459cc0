"""What a request tells its client: updates that never take anything back, then a finish."""

from __future__ import annotations

from typing import TYPE_CHECKING

from branchline.protocol import Finish, TokenLogprob, Update, Usage
from branchline.runtime.request import State

if TYPE_CHECKING:
    from branchline.runtime.jobs import RowResult
    from branchline.runtime.request import Request


def record(request: Request, result: RowResult) -> int:
    """Take in what a row brought: ids, logprobs and known ends; returns the number of new tokens.

    Everything that is reported per token grows here, together.
    """
    assert request.state is State.RUNNING
    if request.params.logprob_start == 0 and not request.prompt_logprobs:
        request.prompt_logprobs.append(TokenLogprob(None, request.prompt[0]))
    request.prompt_logprobs += result.prompt_logprobs
    if result.token is None:
        return 0
    if request.params.max_tokens == 0:
        request.next_top = result.logprob.top if result.logprob is not None else ()
        request.ended = True
        return 0
    request.tokens.append(result.token)
    if result.logprob is not None:
        request.logprobs.append(result.logprob)
    request.ended = (
        result.token in request.stop_ids or request.output_len >= request.params.max_tokens
    )
    return 1


def report(request: Request, result: RowResult) -> Update | None:
    """The update after a recorded row; None: nothing to say yet. May set `request.ended`."""
    text = ""
    if result.token is not None and request.params.max_tokens > 0:
        text = request.text.push(result.token)
        request.ended = request.ended or request.text.matched is not None
    if request.ended:
        text += request.text.finish()
        return _update(request, text, _finish(request))
    return _update(request, text, None) if request.stream and result.token is not None else None


def _update(request: Request, text: str, finish: Finish | None) -> Update:
    first, request.reported = request.reported, request.output_len
    return Update(
        rid=request.rid,
        index=request.index,
        text=text if request.stream else request.text.text,
        ids=tuple(request.tokens[len(request.prompt) + first :]),
        logprobs=tuple(request.logprobs[first:]),
        prompt_logprobs=tuple(request.prompt_logprobs) if first == 0 else (),
        next_top=request.next_top,
        finish=finish,
        usage=usage(request) if finish is not None else None,
    )


def _finish(request: Request) -> Finish:
    matched = request.text.matched
    return Finish(
        reason="length" if matched is None else "stop",
        matched=matched,
        kept=request.text.kept,
        tail=request.text.tail,
        seed=request.seed,
    )


def usage(request: Request) -> Usage:
    """What a request has cost so far."""
    return Usage(
        prompt_tokens=len(request.prompt),
        cached_tokens=len(request.prompt) - request.computed_prompt_tokens,
        completion_tokens=request.output_len,
    )
