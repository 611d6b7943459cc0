"""The application: routes, limits and errors around one backend."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import FastAPI

from branchline.gateway import admin, chats, completions, errors, native
from branchline.gateway.guard import Guard
from branchline.gateway.page import data_routes, page_routes
from branchline.gateway.service import Service
from branchline.gateway.settings import Settings
from branchline.gateway.traffic import Traffic

if TYPE_CHECKING:
    from branchline.gateway.service import Served


def create_app(backend: Served, settings: Settings | None = None) -> FastAPI:
    """The gateway over a backend.

    Args:
        backend: what answers: a `RuntimeLink`, a client, an engine. The application has to run on
            the loop that the backend's coroutines run on, the background loop (`serving`).
        settings: keys and limits.
    """
    settings = settings or Settings()
    service = Service(backend, settings)
    traffic = Traffic()
    app = FastAPI(title="Branchline", docs_url=None, redoc_url=None)
    for routes in (completions.routes, chats.routes, native.routes, admin.routes):
        app.include_router(routes(service))
    app.include_router(page_routes())
    app.include_router(data_routes(backend, traffic))
    errors.install(app, settings.retry_after)
    app.add_middleware(Guard, settings)
    app.add_middleware(traffic.watch)
    return app
