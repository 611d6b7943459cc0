"""What a request tells its client: updates that never take anything back, then a finish."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from branchline.protocol import Finish, TokenLogprob, Update, Usage
from branchline.runtime.request import State

if TYPE_CHECKING:
    from collections.abc import Sequence

    from branchline.runtime.constraint import Constraint
    from branchline.runtime.jobs import RowResult
    from branchline.runtime.request import Request


def begin(requests: Sequence[Request], constraint: Constraint) -> None:
    """Put the choices of one prompt, before they wait, at the beginning of their grammar.

    What it forces from the start is known output.
    """
    forced = constraint.begin()
    for request in requests:
        request.constraint = constraint.copy()
        _force(request, forced)
        request.known = np.array(request.tokens, dtype=np.int32)


def record(request: Request, result: RowResult) -> None:
    """Take in what a row brought: ids, logprobs, what a grammar forces after them, known ends.

    Everything that is reported per token grows here, together.

    Raises:
        InvalidRequest, RuntimeFailed: the grammar cannot go on; the request must end.
    """
    assert request.state is State.RUNNING
    if request.params.logprob_start == 0 and not request.prompt_logprobs:
        request.prompt_logprobs.append(TokenLogprob(None, request.prompt[0]))
    request.prompt_logprobs += result.prompt_logprobs
    if result.token is None:
        return
    if request.params.max_tokens == 0:
        request.next_top = result.logprob.top if result.logprob is not None else ()
        request.ended = True
        return
    constraint = request.constraint
    forced = constraint.take(result.token, request.output_len) if constraint is not None else ()
    request.append(result.token)
    request.sampled_len = len(request.tokens)
    if result.logprob is not None:
        request.logprobs.append(result.logprob)
    if forced and not request.ended:
        _force(request, forced)
        request.extend_again()


def report(request: Request) -> Update | None:
    """The update after tokens became known; None: nothing to say yet. May set `request.ended`.

    A stop string may end the output before tokens that were forced; those never were.
    """
    before = request.pushed
    text = _push(request)
    if request.ended:
        if request.state is State.WAITING:  # it never ran: nothing was looked for in the tree
            request.computed_prompt_tokens = len(request.prompt)
        text += request.text.finish()
        return _update(request, text, _finish(request))
    return _update(request, text, None) if request.stream and request.pushed > before else None


def _force(request: Request, tokens: Sequence[int]) -> None:
    """Append what must follow, up to the end of the output."""
    for token in tokens:
        request.append(token)
        request.forced_tokens += 1
        if request.ended:
            break


def _push(request: Request) -> str:
    """Turn the new tokens into text, up to the end of the output."""
    text = ""
    while request.pushed < request.output_len and request.text.matched is None:
        text += request.text.push(request.tokens[len(request.prompt) + request.pushed])
        request.pushed += 1
    if request.text.matched is not None:
        request.ended = True
        cut = request.output_len - request.pushed
        request.forced_tokens -= cut
        del request.tokens[len(request.tokens) - cut :]
    return text


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
        note="" if request.constraint is None else request.constraint.note,
    )


def usage(request: Request) -> Usage:
    """What a request has cost so far."""
    return Usage(
        prompt_tokens=len(request.prompt),
        cached_tokens=len(request.prompt) - request.computed_prompt_tokens,
        completion_tokens=request.output_len,
        forced_tokens=request.forced_tokens,
        recalled_tokens=request.recalled_tokens,
    )
