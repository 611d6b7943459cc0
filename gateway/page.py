"""The page where one sees the tree, the picture it draws, and the metrics: routes for the gateway.

The page is one document that asks nobody but its own gateway. Its policy names the hashes of its
style and its script, so nothing that a user wrote can run there.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from fastapi import APIRouter
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_LATEST

from branchline.errors import BranchlineError
from branchline.gateway.live import PATIENCE, Live
from branchline.gateway.metrics import render

if TYPE_CHECKING:
    from branchline.gateway.live import Source
    from branchline.gateway.traffic import Traffic
    from branchline.runtime_info import RuntimeInfo

SCRIPTS = ("numbers.js", "charts.js", "tree.js", "icicle.js", "requests.js", "watch.js")
STATIC = files("branchline.gateway") / "static"


def page_routes() -> APIRouter:
    """`/`: the page. It holds no data, so it needs no key."""
    router = APIRouter(include_in_schema=False)
    document, policy = _document()
    headers = {
        "Content-Security-Policy": policy,
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "no-cache",
    }

    @router.get("/")
    async def page() -> Response:
        return Response(document, media_type="text/html", headers=headers)

    return router


def data_routes(source: Source, traffic: Traffic) -> APIRouter:
    """`/live`: what the page draws; `/metrics`: for Prometheus. They show prompts and numbers."""
    router = APIRouter(include_in_schema=False)
    live = Live(source)

    @router.get("/live")
    async def picture() -> Response:
        headers = {"Cache-Control": "no-store"}
        return Response(await live.picture(), media_type="application/json", headers=headers)

    @router.get("/metrics")
    async def metrics() -> Response:
        content = render(await _info(source), traffic.registry)
        return Response(content, headers={"Content-Type": CONTENT_TYPE_LATEST})

    return router


async def _info(source: Source) -> RuntimeInfo | None:
    """What the runtime tells, None while it does not answer."""
    try:
        return await asyncio.wait_for(source.info(), PATIENCE)
    except (BranchlineError, TimeoutError):
        return None


@cache
def _document() -> tuple[str, str]:
    """The page with its style and script in it, and the policy that lets them run."""
    style = _read("page.css")
    script = '"use strict";\n' + "\n".join(map(_read, SCRIPTS))
    document = _read("page.html").replace("{{style}}", style).replace("{{script}}", script)
    policy = {
        "default-src": "'none'",
        "style-src": _hash(style),
        "script-src": _hash(script),
        "connect-src": "'self'",
        "img-src": "data:",
        "form-action": "'none'",
        "base-uri": "'none'",
        "frame-ancestors": "'none'",
    }
    return document, "; ".join(f"{name} {value}" for name, value in policy.items())


def _read(name: str) -> str:
    return (STATIC / name).read_text(encoding="utf-8")


def _hash(source: str) -> str:
    digest = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
    return f"'sha256-{digest}'"
