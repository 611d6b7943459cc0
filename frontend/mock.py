"""A backend without a model, for tests of programs: scripted, deterministic, instant."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from branchline import eventloop
from branchline.blocking import Blocking
from branchline.errors import InvalidRequest
from branchline.mock_answer import answered
from branchline.mock_grammar import check_answer
from branchline.mock_script import Reply, Script, choice_scores
from branchline.mock_tokens import END, PrefixCache, Vocabulary
from branchline.protocol import ModelCard, Scored, Usage
from branchline.runtime_info import RuntimeInfo

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from branchline.mock_script import Answer, Answers, Likelihoods, Pick, Picks
    from branchline.protocol import ChatTemplate, ChoiceScore, Generate, Score, Update


class Mock(Blocking):
    """A `Backend` that says what it is told to.

    ::

        bl.Mock("yes")                               # always
        bl.Mock(["Paris", "Rome"])                   # one request after the other
        bl.Mock({r"capital of France": "Paris"})     # by what the prompt says
        bl.Mock(lambda prompt: prompt[-1].upper())   # by a function of the prompt
        bl.Mock(select={"Is it safe": "no"})         # what `select` takes

    An answer is a text, an exception to raise, or a `Reply`, which can also delay, stream in pieces
    of its own and fail midway. Of several patterns, the one that is found furthest along in the
    prompt answers, so a conversation is answered by its last turn; a pattern may have a list of
    answers, too. Of a generation with `n` choices each takes an answer. A `select` with
    `method="decode"` is a generation.

    An answer that ends by itself must be one that the gen allows: match its `regex`, or be JSON
    where there is a `json_schema` (whose rules are not checked); other grammars are not looked at.
    Nothing holds it to a `type`: as anywhere, the text is parsed.

    A token is a word or a mark, with the white space before it. `max_tokens`, `stop` and
    `stop_token_ids` end an answer as they would a model's; nothing is drawn, so temperature and the
    like change nothing. What an earlier request had at its start counts as cached.

    Attributes:
        requests: every request, in the order of arrival.
        aborted: the rids of those that were given up before they had ended.
        alive: how many have arrived and not ended.
        most_alive: the most of them at one time.
    """

    constrains = False

    def __init__(
        self,
        answers: Answers = "",
        *,
        select: Picks | None = None,
        likelihoods: Likelihoods | None = None,
        default: Answer | None = None,
        delay: float = 0.0,
        hold: bool = False,
        template: ChatTemplate | None = None,
        name: str = "mock",
        context_length: int = 1 << 20,
    ) -> None:
        """Set it up.

        Args:
            answers: what a gen gets.
            select: what a select takes: a choice; or, by choice, the log-probability of each of its
                tokens, one number for all or one for each; or an exception to raise. Always the
                same, a list, by pattern or by a function, as `answers`. Without it, the first
                choice. A select that is calibrated asks twice.
            likelihoods: such numbers by choice, for every select.
            default: the answer where no pattern is found or a list has come to its end.
            delay: seconds that every request waits first.
            hold: let requests wait until `release` is called.
            template: the chat template; without one, turns read `USER:` and `ASSISTANT:`.
            name: the model's name.
            context_length: the most tokens of a prompt and its answer together.
        """
        self.card = ModelCard(name, 1 << 31, context_length, (END,), template)
        self.requests: list[Generate | Score] = []
        self.aborted: list[str] = []
        self.alive = self.most_alive = 0
        self._answers: Script[Answer] = Script("answers", answers, default)
        # A table of likelihoods is a mapping as well, so it is not a script by itself.
        always = select if select is not None else lambda _: likelihoods
        self._picks: Script[Pick | None] = Script("picks", always)
        self._delay = delay
        self._rids = itertools.count()
        self._arrived = threading.Condition()
        self._released = asyncio.Event()
        if not hold:
            self._released.set()
        self._words = Vocabulary()
        self._cache = PrefixCache()
        self._began = time.monotonic()
        self._spent: list[Usage] = []

    # ------------------------------------------------------------------ for the test

    @property
    def prompts(self) -> list[str]:
        """The text of every request's prompt, in the order of arrival."""
        return [self._words.prompt_text(request.prompt) for request in self.requests]

    def wait_for_requests(self, count: int, timeout: float = 5.0) -> None:
        """Wait until this many requests have arrived in all; never call it on an event loop.

        Raises:
            TimeoutError: they have not, in so many seconds.
        """
        with self._arrived:
            if not self._arrived.wait_for(lambda: len(self.requests) >= count, timeout):
                raise TimeoutError(f"{len(self.requests)} of {count} requests in {timeout:g} s")

    def release(self) -> None:
        """Let the requests go on that wait because of `hold`, and those to come."""
        eventloop.background_loop().call_soon_threadsafe(self._released.set)

    # ------------------------------------------------------------------ the Backend

    def new_rid(self) -> str:
        """An rid that it has not used."""
        return f"mock-{next(self._rids)}"

    async def generate(self, request: Generate) -> AsyncIterator[Update]:
        """The scripted answers, piece by piece; one update for each if it does not stream."""
        with self._live(request):
            ids, cached = self._prompt(request)
            await self._wait()
            for index in range(request.params.n):
                reply = self._next_reply(request)
                await asyncio.sleep(reply.delay)
                said = answered(request, index, reply, self._words, ids, cached)
                if request.params.grammar is not None and reply.error is None:
                    check_answer(said, request.params.grammar)
                for position, update in enumerate(said.updates):
                    await asyncio.sleep(reply.pause if position else 0)
                    yield update
                if reply.error is not None:
                    raise reply.error.with_traceback(None)
                self._cache.add((*ids, *said.ids))
                self._spent.append(said.usage)

    async def score(self, request: Score) -> Scored:
        """The scripted log-probabilities of the choices."""
        with self._live(request):
            ids, cached = self._prompt(request)
            await self._wait()
            pick = self._picks.next(self._words.prompt_text(request.prompt))
            if isinstance(pick, Exception):
                raise pick.with_traceback(None)
            scores = choice_scores(request, pick, self._words)
            usage = self._scoring_usage(ids, cached, scores)
            self._spent.append(usage)
            return Scored(request.rid, scores, usage)

    async def flush(self) -> int:
        """Count nothing that came before as cached; how many tokens that were."""
        return self._cache.clear()

    async def info(self) -> RuntimeInfo:
        """What has been asked and answered so far; it has no pages but those it counts."""
        prompt = sum(usage.prompt_tokens for usage in self._spent)
        cached = sum(usage.cached_tokens for usage in self._spent)
        generated = sum(usage.completion_tokens for usage in self._spent)
        uptime = time.monotonic() - self._began
        return RuntimeInfo(
            model=self.card.name,
            uptime=uptime,
            running=self.alive,
            waiting=0,
            pages_total=self._cache.tokens,
            pages_free=0,
            pages_cached=self._cache.tokens,
            pages_private=0,
            pages_protected=0,
            prompt_tokens=prompt,
            cached_prompt_tokens=cached,
            computed_prompt_tokens=prompt - cached,
            generated_tokens=generated,
            requests_finished=len(self._spent),
            requests_aborted=len(self.aborted),
            retractions=0,
            evicted_pages=0,
            steps=generated,
            tokens_per_second=generated / uptime if uptime else 0.0,
        )

    # ------------------------------------------------------------------ a request

    @contextmanager
    def _live(self, request: Generate | Score) -> Iterator[None]:
        """Record a request, and whether it was given up."""
        with self._arrived:
            self.requests.append(request)
            self._arrived.notify_all()
        self.alive += 1
        self.most_alive = max(self.most_alive, self.alive)
        try:
            yield
        except (asyncio.CancelledError, GeneratorExit):
            self.aborted.append(request.rid)
            raise
        finally:
            self.alive -= 1

    async def _wait(self) -> None:
        await self._released.wait()
        await asyncio.sleep(self._delay)

    def _prompt(self, request: Generate | Score) -> tuple[list[int], int]:
        """The ids of a prompt and how many of them are cached; from now on all are."""
        ids = self._words.encode_prompt(request.prompt)
        if not ids:
            raise InvalidRequest("the prompt is empty: there is nothing to go on from")
        if len(ids) >= self.card.context_length:
            raise InvalidRequest(
                f"the prompt has {len(ids)} tokens: the context is {self.card.context_length}"
            )
        cached = self._cache.match(ids)
        self._cache.add(ids)
        return ids, cached

    def _next_reply(self, request: Generate) -> Reply:
        if request.params.max_tokens == 0:
            return Reply("")  # only the prompt is computed: that takes no answer
        answer = self._answers.next(self._words.prompt_text(request.prompt))
        if isinstance(answer, Exception):
            raise answer.with_traceback(None)
        return answer if isinstance(answer, Reply) else Reply(answer)

    def _scoring_usage(self, ids: list[int], cached: int, scores: tuple[ChoiceScore, ...]) -> Usage:
        """Each choice is a prompt with the choice at its end; all but the first find the prompt."""
        prompt_tokens = cached_tokens = 0
        for score in scores:
            sequence = (*ids, *score.ids)
            prompt_tokens += len(sequence)
            cached_tokens += cached if score is scores[0] else self._cache.match(sequence)
            self._cache.add(sequence)
        return Usage(prompt_tokens, cached_tokens, 0)
