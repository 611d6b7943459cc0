"""A model with random weights on the runner of the device, and loops that are driven by hand."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch

from branchline.kernels.triton.device import triton_kernels
from branchline.runtime.config import RuntimeConfig
from branchline.runtime.cuda.graphs import BUCKETS, CudaGraphs, RecordedGraphs, bucket_of
from branchline.runtime.cuda.queue import CudaQueue, HostQueue
from branchline.runtime.cuda.start import MODES, triton_runner
from branchline.runtime.loop import Loop
from branchline.runtime.models.decoder import Decoder
from branchline.runtime.request import Request
from branchline.runtime.sizing import Limits
from branchline.sampling_params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from branchline.runtime.models.config import DecoderConfig
    from branchline.runtime.runner import Runner
    from gpu_stages.scale import Scale


class RandomWeights:
    """Normal numbers, never zeros, on which a device is faster; norms are ones."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self._device, self._dtype = device, dtype
        self._generator = torch.Generator(device).manual_seed(0)

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Whatever is asked for."""
        weight = torch.ones(shape, dtype=self._dtype, device=self._device)
        if "norm" in name:
            return weight
        return weight.normal_(0.0, 0.02, generator=self._generator)

    def left(self) -> list[str]:
        """None."""
        return []


class Served:
    """A model on a runner whose graphs are captured; its pages hold random numbers."""

    def __init__(
        self, config: DecoderConfig, scale: Scale, device: torch.device, pages: int
    ) -> None:
        on_device = device.type == "cuda"
        self.scale = scale
        self.limits = Limits(pages, min(scale.context, config.context_length))
        self.queue = CudaQueue(device) if on_device else HostQueue()
        with self.queue.launching(checked=False):
            weights = RandomWeights(device, scale.dtype)
            self.model = Decoder(config, weights, triton_kernels(device), scale.dtype)
        self.queue.close()
        if not on_device:
            self.model.segment_cost = 0  # so that what is as small as here is shared too
        self._buckets = scale.buckets or BUCKETS
        start = time.perf_counter()
        self.runner = triton_runner(
            self.model,
            self._settings(),
            self.limits,
            self.queue,
            CudaGraphs() if on_device else RecordedGraphs(),
            self._buckets,
        )
        self.queue.close()
        self.capture_seconds = time.perf_counter() - start
        with self.queue.launching(checked=False):
            for pool in self.pools:
                pool.normal_()
        self.queue.close()

    @property
    def pools(self) -> list[Tensor]:
        """K and V of every layer."""
        return [pool for layer in self.model._pools for pool in layer]

    def _settings(self, **settings: Any) -> RuntimeConfig:
        scale = self.scale
        defaults = {
            "max_running": scale.running,
            "max_batch_tokens": scale.batch_tokens,
            "chunk_tokens": scale.batch_tokens,
        }
        return RuntimeConfig(**(defaults | settings))

    def driver(self, *, runner: Runner | None = None, **settings: Any) -> Driver:
        """A new loop, whose cache is empty; the one before it must have stopped."""
        config = self._settings(**settings)
        return Driver(runner or self.runner, config, self.limits, self.model)

    def replays(self, tokens: int, draws: int) -> Callable[[], None]:
        """Launches again the step that the device's tables hold, of so many tokens; greedy."""
        bucket, drawn = (bucket_of(count, self._buckets) for count in (tokens, draws))
        forward = self.runner._forwards._lanes[bucket].forward  # type: ignore[index]
        draw = self.runner._draws._graphs[drawn, MODES[0]]  # type: ignore[index]
        assert forward is not None

        def replay() -> None:
            forward.replay()
            draw.replay()

        return replay


class _Silent:
    """In the place of text: nothing is detokenized, and nothing stops but at its length."""

    matched = None
    text = tail = ""
    kept = 0

    def push(self, token: int) -> str:  # noqa: ARG002
        return ""

    def finish(self) -> str:
        return ""


class Driver:
    """A loop on the caller's thread. Prompts can be planted: cached, without being computed."""

    def __init__(
        self, runner: Runner, config: RuntimeConfig, limits: Limits, model: Decoder
    ) -> None:
        self._random = torch.Generator().manual_seed(1)
        self._vocab = model.vocab_size
        self.ended: dict[Request, float] = {}  # when its last token came
        self.loop = Loop(
            runner,
            config,
            limits,
            model_name="random",
            segment_cost=model.segment_cost,
            on_events=self._take,
        )

    def _take(self, events: Sequence[tuple[Request, Any]]) -> None:
        now = time.perf_counter()
        self.ended |= {request: now for request, event in events if getattr(event, "finish", None)}

    def tokens(self, count: int) -> list[int]:
        """Random ids."""
        ids: list[int] = torch.randint(self._vocab, (count,), generator=self._random).tolist()
        return ids

    def plant(self, prompt: Sequence[int]) -> None:
        """Give a prompt pages in the tree, whose K and V are whatever the pages hold."""
        memory = self.loop.scheduler.memory
        match = memory.tree.match(prompt)
        rest = prompt[match.length :]
        memory.tree.insert(match.node, rest, memory.allocate(len(rest)))

    def request(self, prompt: list[int], max_tokens: int, **params: Any) -> Request:
        """Hand in a greedy request that ends at its length."""
        sampling = SamplingParams(
            **({"temperature": 0.0, "max_tokens": max_tokens, "ignore_eos": True} | params)
        )
        request = Request(prompt=prompt, params=sampling, seed=0, text=_Silent())  # type: ignore[arg-type]
        self.loop.submit([request])
        return request

    def step(self, times: int = 1) -> None:
        """So many turns of the loop."""
        for _ in range(times):
            self.loop.step(wait=False)

    def finish(self, requests: Sequence[Request]) -> float:
        """Turn until all of them have ended; seconds from now to the last one's end."""
        start = time.perf_counter()
        while any(request not in self.ended for request in requests):
            self.loop.step(wait=False)
        return max(self.ended[request] for request in requests) - start

    def steps(self, warm: int, timed: int) -> float:
        """Seconds of one step, of the `timed` after `warm` others."""
        self.step(warm)
        start = time.perf_counter()
        self.step(timed)
        return (time.perf_counter() - start) / timed

    def stop(self) -> None:
        """End what runs; the device's tables keep the last step."""
        scheduler = self.loop.scheduler
        self.loop.abort([*scheduler.running, *scheduler.waiting])
        self.step()
        while not self.loop.idle:
            self.step()
