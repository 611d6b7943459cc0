"""What the runtime does for its clients, whatever carries the messages."""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from typing import TYPE_CHECKING

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
from branchline.runtime.gather import Job

if TYPE_CHECKING:
    from collections.abc import Callable

    from branchline.protocol import ClientMessage, FailureCode, RuntimeMessage, Scored
    from branchline.runtime.admission import Admission
    from branchline.runtime.config import RuntimeConfig
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
    ) -> None:
        self._admission = admission
        self._heartbeat = config.heartbeat
        self._most = config.max_running + config.max_waiting
        self._post = post
        self._lock = threading.Lock()  # guards what follows
        self._jobs: dict[bytes, dict[str, Job]] = {}  # the open ones, by client and rid
        self._live = 0  # requests in the loop, whether or not their job is still open

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
            live = _close(self._jobs.pop(client, {}))
        self._abort(live)
        self._loop.ended(client)

    def overload(self, client: bytes, reason: str) -> int:
        """The client does not keep up: end what it has running and say so; the number of jobs."""
        with self._lock:
            jobs = dict(self._jobs.get(client, {}))
            self._jobs.get(client, {}).clear()
            live = _close(jobs)
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
                with self._lock:
                    job = self._jobs[client].get(message.rid)
                    live = [] if job is None else list(job.live)
                self._abort(live)
            case Ended():
                self._loop.ended(client, message.program, message.branch)
            case Flush():
                self._loop.flush(lambda pages: self._post(client, Flushed(message.rid, pages)))
            case Info():
                self._loop.info(lambda info: self._post(client, InfoReply(message.rid, info)))
            case Inspect():
                raise ValueError("inspect: not supported")
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
        if isinstance(message, Generate):
            job: Job = self._admission.generation(client, message)
        else:
            job = self._admission.scoring(client, message)
        with self._lock:
            wanted = self._live + len(job.requests)
            fits = wanted <= self._most
            if fits:
                self._live = wanted
                self._jobs[client][job.rid] = job
        if fits:
            self._loop.submit(job.requests)
        else:
            text = f"{wanted} requests would be waiting or running: at most {self._most}; try later"
            self._post(client, Failure(job.rid, "overloaded", text))

    def _abort(self, live: list[Request]) -> None:
        if live:
            self._loop.abort(live)

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


def _close(jobs: dict[str, Job]) -> list[Request]:
    """Close jobs that are no longer registered; the requests that still live."""
    for job in jobs.values():
        job.open = False
    return [request for job in jobs.values() for request in job.live]
