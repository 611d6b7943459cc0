"""What a `Mock` sends for an answer: cut as a model's would be, token by token or whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from branchline.mock_tokens import END
from branchline.protocol import Finish, TokenLogprob, Update, Usage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from branchline.mock_script import Reply
    from branchline.mock_tokens import Vocabulary
    from branchline.protocol import Generate
    from branchline.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class Answered:
    """One choice, ready to be sent."""

    updates: tuple[Update, ...]  # the last one has the finish, unless it fails midway
    ids: tuple[int, ...]
    usage: Usage


@dataclass(frozen=True, slots=True)
class _Cut:
    """Where a text ends, and why."""

    text: str
    ids: tuple[int, ...]
    finish: Finish


def answered(
    request: Generate,
    index: int,
    reply: Reply,
    words: Vocabulary,
    prompt: Sequence[int],
    cached: int,
) -> Answered:
    """The updates of a choice, and what it cost."""
    params = request.params
    pieces = [reply.text] if isinstance(reply.text, str) else list(reply.text)
    tokens = [words.encode(piece) for piece in pieces]
    if isinstance(reply.text, str):
        tokens = [[token] for token in tokens[0]]
    cut = _cut([token for piece in tokens for token in piece], words, params)
    usage = Usage(len(prompt), cached, len(cut.ids))
    updates = _streamed(request, index, cut, tokens, words, reply.logprob)
    if params.logprob_start is not None:
        updates.insert(0, _prompt_update(request, index, prompt, params.logprob_start))
    if reply.error is None:
        likeliest = _likeliest(None, params.top_logprobs, reply.logprob)
        updates.append(
            Update(
                request.rid,
                index,
                next_top=() if params.max_tokens else likeliest,
                finish=cut.finish,
                usage=usage,
            )
        )
        updates = updates if request.stream else [_whole(updates)]
    return Answered(tuple(updates), cut.ids, usage)


def _cut(ids: Sequence[int], words: Vocabulary, params: SamplingParams) -> _Cut:
    """An answer up to its first stop, or as long as it may be."""
    seed = params.seed or 0
    text, unsearched = "", 0
    for count, token in enumerate(ids[: params.max_tokens], 1):
        if token in params.stop_token_ids:
            finish = Finish("stop", token, count - 1, seed=seed)
            return _Cut(text, tuple(ids[:count]), finish)
        text += words.text([token])
        if count < params.min_tokens:
            unsearched = len(text)
            continue
        found = [(text.find(stop, unsearched), stop) for stop in params.stop]
        complete = [(at + len(stop), -len(stop), stop) for at, stop in found if at >= 0]
        if complete:
            end, _, stop = min(complete)
            end -= 0 if params.no_stop_trim else len(stop)
            return _stopped(text[:end], stop, ids[:count], words, seed)
    if len(ids) >= params.max_tokens:
        kept = tuple(ids[: params.max_tokens])
        return _Cut(text, kept, Finish("length", None, len(kept), seed=seed))
    return _Cut(text, (*ids, END), Finish("stop", END, len(ids), seed=seed))


def _stopped(text: str, stop: str, ids: Sequence[int], words: Vocabulary, seed: int) -> _Cut:
    """Cut by a stop string: the ids wholly before it stay ids, the rest of the text is text."""
    kept = len(ids)
    while len(words.text(ids[:kept])) > len(text):
        kept -= 1
    tail = text[len(words.text(ids[:kept])) :]
    return _Cut(text, tuple(ids), Finish("stop", stop, kept, tail, seed))


def _streamed(
    request: Generate,
    index: int,
    cut: _Cut,
    pieces: Sequence[Sequence[int]],
    words: Vocabulary,
    logprob: float,
) -> list[Update]:
    """An update for each piece, as far as the text and the ids go; the last takes the end's id."""
    updates: list[Update] = []
    shown = taken = chars = 0
    for piece in pieces:
        ids = cut.ids[taken : taken + len(piece)]
        if not ids:
            break
        taken += len(ids)
        chars += len(words.text(ids))
        updates.append(_update(request, index, cut.text[shown:chars], ids, logprob))
        shown = min(chars, len(cut.text))
    if taken < len(cut.ids):
        updates.append(_update(request, index, "", cut.ids[taken:], logprob))
    return updates


def _update(
    request: Generate, index: int, text: str, ids: tuple[int, ...], logprob: float
) -> Update:
    params = request.params
    if not params.wants_logprobs:
        return Update(request.rid, index, text, ids)
    logprobs = tuple(
        TokenLogprob(logprob, token, _likeliest(token, params.top_logprobs, logprob))
        for token in ids
    )
    return Update(request.rid, index, text, ids, logprobs)


def _prompt_update(request: Generate, index: int, prompt: Sequence[int], start: int) -> Update:
    logprobs = tuple(
        TokenLogprob(None if position == 0 else -1.0, prompt[position])
        for position in range(start, len(prompt))
    )
    return Update(request.rid, index, prompt_logprobs=logprobs)


def _likeliest(first: int | None, count: int, logprob: float) -> tuple[tuple[float, int], ...]:
    """So many tokens, each less likely than the one before."""
    others = [token for token in range(count + 1) if token != first]
    tokens = [*([] if first is None else [first]), *others][:count]
    return tuple((logprob - rank, token) for rank, token in enumerate(tokens))


def _whole(updates: Sequence[Update]) -> Update:
    """All updates of a choice in one."""
    last = updates[-1]
    return Update(
        last.rid,
        last.index,
        "".join(update.text for update in updates),
        tuple(token for update in updates for token in update.ids),
        tuple(logprob for update in updates for logprob in update.logprobs),
        tuple(logprob for update in updates for logprob in update.prompt_logprobs),
        last.next_top,
        last.finish,
        last.usage,
    )
