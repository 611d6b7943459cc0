"""Requests on a loop over the real model, driven by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from branchline.protocol import Failure
from branchline.runtime.config import RuntimeConfig
from branchline.runtime.loop import Loop
from branchline.runtime.runner import CpuRunner
from branchline.runtime.streams import WorkerStream

from .stub import StubText, make_request

if TYPE_CHECKING:
    from branchline.runtime.sizing import Limits


class Runs:
    """Runs prompts on a loop over the real model and gathers what comes back."""

    def __init__(self, loaded, limits: Limits, *, stream=None, **settings) -> None:
        self.ended = {}
        self.ids = {}
        self.prompt_logprobs = {}
        self.stop_ids = frozenset(loaded.card.stop_token_ids)
        self.stream = stream or WorkerStream()
        config = RuntimeConfig(**settings)
        self.loop = Loop(
            CpuRunner(loaded.model, self.stream, config.max_running, limits),
            config,
            limits,
            model_name="smollm2",
            segment_cost=loaded.model.segment_cost,
            on_events=self.take,
        )

    def take(self, events) -> None:
        for request, update in events:
            if isinstance(update, Failure):
                assert update.code == "aborted", update
                continue
            self.ids.setdefault(request, []).extend(update.ids)
            self.prompt_logprobs.setdefault(request, []).extend(update.prompt_logprobs)
            if update.finish:
                self.ended[request] = update

    def requests(self, prompts: list[list[int]], lengths: list[int], **params):
        requests = [
            make_request(prompt, max_tokens=length, **params)
            for prompt, length in zip(prompts, lengths, strict=True)
        ]
        for request in requests:
            request.stop_ids = self.stop_ids
            request.text = StubText(self.stop_ids, frozenset())
        return requests

    def run(self, requests) -> None:
        self.loop.submit(requests)
        self.loop.step(wait=False)
        while not self.loop.idle:
            self.loop.step(wait=False)
        self.loop.check()

    def generate(self, prompts: list[list[int]], lengths: list[int], **params):
        requests = self.requests(prompts, lengths, **params)
        self.run(requests)
        return requests

    def quiesce(self) -> None:
        """Wait until the device has done all that is queued."""
        self.stream.submit(lambda: None).result()
