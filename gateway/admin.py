"""Beside generating: what is served, how it is, and what an operator does."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Response

from branchline.gateway.errors import ApiError, json_text
from branchline.protocol import Generate
from branchline.sampling_params import SamplingParams

if TYPE_CHECKING:
    from branchline.gateway.service import Service

ONE_TOKEN_SECONDS = 30.0  # that a runtime which is well may take for one token


def routes(service: Service) -> APIRouter:
    """The routes."""
    router = APIRouter()
    backend = service.backend
    began = int(time.time())

    def model(name: str) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": began,
            "owned_by": "branchline",
            "max_model_len": backend.card.context_length,
        }

    @router.get("/v1/models", response_model=None)
    async def models() -> Response:
        served = [model(name) for name in service.models()]
        return json_text(json.dumps({"object": "list", "data": served}))

    @router.get("/v1/models/{name:path}", response_model=None)
    async def one_model(name: str) -> Response:
        return json_text(json.dumps(model(service.model(name))))

    @router.get("/health", response_model=None)
    async def health() -> Response:
        """Whether requests would be served, without asking for anything."""
        if backend.lost is not None:
            raise ApiError(503, backend.lost, kind="server_error", code="runtime_unavailable")
        return json_text('{"status": "ok"}')

    @router.get("/health_generate", response_model=None)
    async def health_generate() -> Response:
        """Whether one real token comes."""
        params = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)
        asked = Generate(backend.new_rid(), (("program", "Hi"),), params, stream=False)
        start = time.perf_counter()
        try:
            async with asyncio.timeout(ONE_TOKEN_SECONDS):
                async for _ in backend.generate(asked):
                    pass
        except TimeoutError:
            message = f"no token came within {ONE_TOKEN_SECONDS:g} s"
            raise ApiError(503, message, kind="server_error", code="runtime_stalled") from None
        seconds = time.perf_counter() - start
        return json_text(json.dumps({"status": "ok", "seconds": round(seconds, 4)}))

    @router.post("/flush_cache", response_model=None)
    async def flush_cache() -> Response:
        """Drop every cached prefix that no request holds."""
        return json_text(json.dumps({"pages": await backend.flush()}))

    @router.get("/info", response_model=None)
    async def info() -> Response:
        """What the runtime is doing, and what it serves."""
        told = {"model": asdict(backend.card), "runtime": asdict(await backend.info())}
        return json_text(json.dumps({**told, "gateway": {"open_prompts": service.gate.open}}))

    return router
