"""What the runtime does for its clients, whatever carries the messages."""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from typing import TYPE_CHECKING

from branchline.errors import RequestAborted
from branchline.protocol import (
    PROTOCOL_VERSION,
    Abort,
    Bye,
    Ended,
    Failure,
    Flush,
    Flushed,
    Generate,
    Greeting,
    Hello,
    Info,
    InfoReply,
    Inspect,
    Outputs,
    Ping,
    Pong,
    Score,
    Update,
    rid_of,
)
from branchline.runtime.gather import Generation, Job
from branchline.runtime.inspection import MOST_NODES, Painter

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from branchline.protocol import ClientMessage, FailureCode, RuntimeMessage, Scored
    from branchline.runtime.admission import Admission
    from branchline.runtime.compiling import Compiler
    from branchline.runtime.config import RuntimeConfig
    from branchline.runtime.grammar import CompiledGrammar
    from branchline.runtime.loop import Loop
    from branchline.runtime.request import Request

logger = logging.getLogger(__name__)


class Service:
    """Knows who asked what, and who is to be told.

    `on_events` runs on the engine thread, everything else on the I/O thread. `post` is called from
    both and must not wait.
    """

    _loop: Loop

    def __init__(
        self,
        admission: Admission,
        config: RuntimeConfig,
        post: Callable[[bytes, RuntimeMessage], None],
        compiler: Compiler | None = None,
    ) -> None:
        """Without a compiler no grammar is served."""
        self._admission = admission
        self._compiler = compiler
        self._heartbeat = config.heartbeat
        tokenizer = admission.tokenizer
        self._painter = Painter(post, tokenizer if config.show_text else None)
        self._most = config.max_running + config.max_waiting
        self._post = post
        self._lock = threading.Lock()  # guards what follows
        self._jobs: dict[bytes, dict[str, Job]] = {}  # the open ones, by client and rid
        # Requests in the loop, whether or not their job is still open, and those on their way
        self._live = 0

    def close(self) -> None:
        """Compile and paint nothing more; the loop is stopped by whoever made it."""
        self._painter.close()
        if self._compiler is not None:
            self._compiler.close()

    def attach(self, loop: Loop) -> None:
        """Name the loop that computes, before the first message."""
        self._loop = loop

    # ------------------------------------------------------------------ on the I/O thread

    def handle(self, client: bytes, message: ClientMessage) -> None:
        """Act on a message. Whatever is wrong with it becomes a failure; nothing is raised."""
        rid = getattr(message, "rid", None)
        try:
            self._handle(client, message)
        except ValueError as error:
            self.refuse(client, rid, "invalid", str(error))
        except Exception as error:
            logger.exception("a %s message met a bug", message.type)
            self.refuse(client, rid, "internal", f"{type(error).__name__}: {error}")

    def refuse_frame(self, client: bytes, frame: bytes, reason: str) -> None:
        """Answer a frame that is not a message."""
        self.refuse(client, rid_of(frame), "protocol", reason)

    def refuse(self, client: bytes, rid: str | None, code: FailureCode, message: str) -> None:
        """Answer that something was not accepted, without disturbing a live request of that rid.

        A failure with an rid ends that request: one that must not only mentions it.
        """
        if rid in self._jobs.get(client, {}):
            rid, message = None, f"rid={rid!r} is a live request; refused: {message}"
        self._post(client, Failure(rid, code, message))

    def forget(self, client: bytes) -> None:
        """The client has gone: end what it has running."""
        with self._lock:
            live = self._close(self._jobs.pop(client, {}))
        self._abort(live)
        self._loop.ended(client)

    def overload(self, client: bytes, reason: str) -> int:
        """The client does not keep up: end what it has running and say so; the number of jobs."""
        with self._lock:
            jobs = dict(self._jobs.get(client, {}))
            self._jobs.get(client, {}).clear()
            live = self._close(jobs)
        self._abort(live)
        for rid in jobs:
            self._post(client, Failure(rid, "overloaded", reason))
        return len(jobs)

    def _handle(self, client: bytes, message: ClientMessage) -> None:
        if client not in self._jobs and not isinstance(message, Hello):
            self._post(client, Failure(None, "protocol", "unknown connection: say hello first"))
            return
        match message:
            case Hello():
                self._greet(client, message)
            case Generate() | Score():
                self._admit(client, message)
            case Abort():
                self._abort_job(client, message.rid)
            case Ended():
                self._loop.ended(client, message.program, message.branch)
            case Flush():
                self._loop.flush(lambda pages: self._post(client, Flushed(message.rid, pages)))
            case Info():
                self._loop.info(lambda info: self._post(client, InfoReply(message.rid, info)))
            case Inspect():
                self._inspect(client, message)
            case Ping():
                self._post(client, Pong())
            case Bye():
                self.forget(client)

    def _greet(self, client: bytes, hello: Hello) -> None:
        if hello.version != PROTOCOL_VERSION:
            versions = (
                f"the client speaks version {hello.version} of the protocol, "
                f"the runtime version {PROTOCOL_VERSION}: install the same branchline on both sides"
            )
            self._post(client, Failure(None, "protocol", versions))
            return
        with self._lock:
            self._jobs.setdefault(client, {})
        self._post(client, Greeting(PROTOCOL_VERSION, self._admission.card, self._heartbeat))

    def _admit(self, client: bytes, message: Generate | Score) -> None:
        if message.rid in self._jobs[client]:
            raise ValueError("an rid can be used again once its request has ended")
        if isinstance(message, Score):
            self._enter(self._admission.scoring(client, message))
            return
        grammar = message.params.grammar
        if grammar is not None and self._compiler is None:
            raise ValueError(f"grammar: this runtime compiles none, so no {grammar.kind} either")
        job = self._admission.generation(client, message)
        if self._enter(job, submit=grammar is None) and grammar is not None:
            assert self._compiler is not None
            compiling = self._compiler.compile(grammar)
            compiling.add_done_callback(lambda compiled: self._compiled(job, compiled))

    def _enter(self, job: Job, *, submit: bool = True) -> bool:
        """Register a job and hand it to the loop, now or later; False: there are too many."""
        with self._lock:
            wanted = self._live + len(job.requests)
            fits = wanted <= self._most
            if fits:
                self._live = wanted
                self._jobs[job.client][job.rid] = job
                if submit:
                    self._submit(job)
        if not fits:
            text = f"{wanted} requests would be waiting or running: at most {self._most}; try later"
            self._post(job.client, Failure(job.rid, "overloaded", text))
        return fits

    def _submit(self, job: Job) -> None:
        """Hand a job to the loop. Under the lock, so that an abort comes before or after it."""
        job.submitted = True
        self._loop.submit(job.requests)

    def _close(self, jobs: dict[str, Job]) -> list[Request]:
        """Close jobs that are no longer registered; those of their requests that the loop has."""
        live: list[Request] = []
        for job in jobs.values():
            job.open = False
            if job.submitted:
                live += job.live
            else:
                self._live -= len(job.requests)
        return live

    def _abort_job(self, client: bytes, rid: str) -> None:
        with self._lock:
            job = self._jobs[client].get(rid)
            if job is None:
                return
            compiling = not job.submitted
            if compiling:
                self._close({rid: self._jobs[client].pop(rid)})
            live = list(job.live)
        if compiling:
            self._post(client, Failure(rid, "aborted", "the request was aborted"))
        else:
            self._abort(live)

    def _inspect(self, client: bytes, message: Inspect) -> None:
        if not 0 <= message.nodes <= MOST_NODES:
            raise ValueError(f"nodes={message.nodes}: must be from 0 to {MOST_NODES}")
        paint = self._painter.paint
        self._loop.inspect(message.nodes, lambda picture: paint(client, message.rid, picture))

    def _abort(self, live: list[Request]) -> None:
        if live:
            self._loop.abort(live)

    # ------------------------------------------------------------------ on a compiler's thread

    def _compiled(self, job: Generation, compiled: Future[CompiledGrammar]) -> None:
        """A job's grammar is there, or cannot be had. On the I/O thread if it was there before."""
        failure = self._constrain(job, compiled)
        with self._lock:
            if not job.open:
                return
            if failure is None:
                self._submit(job)
            else:
                self._close({job.rid: self._jobs[job.client].pop(job.rid)})
        if failure is not None:
            self._post(job.client, failure)

    def _constrain(self, job: Generation, compiled: Future[CompiledGrammar]) -> Failure | None:
        try:
            self._admission.constrain(job, compiled.result())
        except ValueError as error:
            return Failure(job.rid, "invalid", str(error))
        except RequestAborted as error:
            return Failure(job.rid, "aborted", str(error))
        except Exception as error:
            logger.exception("a grammar met a bug")
            return Failure(job.rid, "internal", f"{type(error).__name__}: {error}")
        return None

    # ------------------------------------------------------------------ on the engine thread

    def on_events(self, events: list[tuple[Request, Update | Failure]]) -> None:
        """Take what one step said: one message of updates for each client, then the rest."""
        updates: defaultdict[bytes, list[Update]] = defaultdict(list)
        others: list[tuple[bytes, Scored | Failure]] = []
        with self._lock:
            for request, event in events:
                job = _job_of(request)
                answer = self._settle(job, request, event)
                if isinstance(answer, Update):
                    updates[job.client].append(answer)
                elif answer is not None:
                    others.append((job.client, answer))
            siblings = [
                sibling
                for request, event in events
                if isinstance(event, Failure)
                for sibling in _job_of(request).live
            ]
        for client, news in updates.items():
            self._post(client, Outputs(tuple(news)))
        for client, answer in others:
            self._post(client, answer)
        self._abort(siblings)

    def _settle(
        self, job: Job, request: Request, event: Update | Failure
    ) -> Update | Scored | Failure | None:
        """Account for an event; what it lets us tell the client."""
        if isinstance(event, Failure) or event.finish is not None:
            if isinstance(job, Generation) and isinstance(event, Update) and event.finish:
                job.finished(request, event.finish)
            job.live.remove(request)
            self._live -= 1
        if not job.open:
            return None
        if isinstance(event, Failure) or not job.live:
            job.open = False
            del self._jobs[job.client][job.rid]
        return event if isinstance(event, Failure) else job.take(event)


def _job_of(request: Request) -> Job:
    assert isinstance(request.owner, Job)
    return request.owner
