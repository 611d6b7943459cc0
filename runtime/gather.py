"""Gathering: one message of a client becomes several requests, and their updates one answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING

from branchline.protocol import ChoiceScore, Scored, Update, Usage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from branchline.protocol import Finish, TokenLogprob
    from branchline.runtime.request import Request


class Job(ABC):
    """One message of a client, the requests that answer it, and which of them still live.

    A job is open until its answer is complete, it has failed, or its client has gone; requests that
    are still alive by then say nothing more.
    """

    def __init__(self, client: bytes, rid: str, requests: Sequence[Request]) -> None:
        self.client = client
        self.rid = rid
        self.requests = tuple(requests)
        self.live = set(requests)
        self.open = True
        self.submitted = False  # to the loop: not while its grammar is being compiled
        for request in requests:
            request.owner = self

    @abstractmethod
    def take(self, update: Update) -> Update | Scored | None:
        """What an update of one of the requests lets us tell the client."""


class Generation(Job):
    """`n` choices of one prompt; each speaks for itself.

    With `text_of` what tokens read as is told with their logprobs; `remember` is told of each
    choice that finishes.
    """

    def __init__(
        self,
        client: bytes,
        rid: str,
        requests: Sequence[Request],
        text_of: Callable[[int], str] | None = None,
        remember: Callable[[Request, Finish], None] | None = None,
    ) -> None:
        super().__init__(client, rid, requests)
        self._text_of = text_of
        self._remember = remember

    def finished(self, request: Request, finish: Finish) -> None:
        """Let it be remembered, if anybody does."""
        if self._remember is not None:
            self._remember(request, finish)

    def take(self, update: Update) -> Update:
        """Pass the update on; it carries the rid and the choice's index."""
        text_of = self._text_of
        if text_of is None or not (update.logprobs or update.prompt_logprobs):
            return update
        return replace(
            update,
            logprobs=tuple(_with_texts(token, text_of) for token in update.logprobs),
            prompt_logprobs=tuple(_with_texts(token, text_of) for token in update.prompt_logprobs),
        )


class Scoring(Job):
    """The choices of a `Score`: request i is choice i, after them come the unconditional ones."""

    def __init__(self, client: bytes, rid: str, requests: Sequence[Request], choices: int) -> None:
        super().__init__(client, rid, requests)
        self._choices = choices
        self._updates: dict[int, Update] = {}

    def take(self, update: Update) -> Scored | None:
        """Keep the update; the last one completes the answer."""
        self._updates[update.index] = update
        return None if len(self._updates) < len(self.requests) else self._scored()

    def _scored(self) -> Scored:
        updates = [self._updates[index] for index in range(len(self.requests))]
        conditional, unconditional = updates[: self._choices], updates[self._choices :]
        return Scored(
            self.rid,
            tuple(
                _choice_score(with_prompt, unconditional[index] if unconditional else None)
                for index, with_prompt in enumerate(conditional)
            ),
            _total(updates),
        )


def _with_texts(token: TokenLogprob, text_of: Callable[[int], str]) -> TokenLogprob:
    top_texts = tuple(text_of(other) for _, other in token.top)
    return replace(token, text=text_of(token.token), top_texts=top_texts)


def _choice_score(with_prompt: Update, alone: Update | None) -> ChoiceScore:
    logprobs = []
    for token in with_prompt.prompt_logprobs:
        assert token.logprob is not None, "a choice starts after the first token"
        logprobs.append(token.logprob)
    return ChoiceScore(
        ids=tuple(token.token for token in with_prompt.prompt_logprobs),
        logprobs=tuple(logprobs),
        unconditional=None
        if alone is None
        else tuple(token.logprob for token in alone.prompt_logprobs),
    )


def _total(updates: Sequence[Update]) -> Usage:
    costs = [update.usage for update in updates if update.usage is not None]
    return Usage(
        prompt_tokens=sum(cost.prompt_tokens for cost in costs),
        cached_tokens=sum(cost.cached_tokens for cost in costs),
        completion_tokens=0,
    )
