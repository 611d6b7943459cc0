"""What all routes ask with: the backend, the gate, and what the settings say of a request."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol

from branchline.backend import Backend
from branchline.gateway.asking import Gate
from branchline.gateway.errors import ApiError, refused
from branchline.protocol import Generate

if TYPE_CHECKING:
    from branchline.gateway.fields import Delivery
    from branchline.gateway.settings import Settings
    from branchline.protocol import Conversation, Inspection, Prompt
    from branchline.sampling_params import SamplingParams


class Served(Backend, Protocol):
    """A backend that also tells how it is, as a `Client` and a `RuntimeLink` do."""

    @property
    def lost(self) -> str | None:
        """Why nobody answers at the moment; None while somebody does."""

    async def inspect(self, nodes: int = 2000) -> Inspection:
        """A picture of the requests, and of the `nodes` largest nodes of the tree."""


class Service:
    """One gateway's backend with the limits it is asked within."""

    def __init__(self, backend: Served, settings: Settings) -> None:
        self.backend = backend
        self.settings = settings
        self.gate = Gate(settings)

    def models(self) -> list[str]:
        """The names that the model answers to; the first is its own."""
        name = self.backend.card.name
        return [name, *(other for other in self.settings.model_names if other != name)]

    def model(self, asked: str | None) -> str:
        """The name that an answer says; a 404 for one that is not served."""
        names = self.models()
        if asked is None:
            return names[0]
        if asked not in names:
            served = ", ".join(map(repr, names))
            raise ApiError(
                404,
                f"model {asked!r} is not served here, but {served}",
                code="model_not_found",
                param="model",
            )
        return asked

    def question(
        self,
        body: Delivery,
        params: SamplingParams,
        *,
        prompt: Prompt = (),
        conversation: Conversation | None = None,
    ) -> Generate:
        """What the runtime is asked, of a prompt or of a conversation."""
        return Generate(
            rid=self.backend.new_rid(),
            prompt=prompt,
            params=params,
            stream=bool(body.stream),
            cache_salt=body.cache_salt,
            priority=body.priority,
            timeout=self._timeout(body.timeout),
            conversation=conversation,
        )

    def _timeout(self, asked: float | None) -> float | None:
        """The seconds that a request may take: what it asks for, at most what is set."""
        if asked is not None and not (math.isfinite(asked) and asked > 0):
            raise refused(f"timeout={asked}: must be above 0 seconds")
        return min((one for one in (asked, self.settings.timeout) if one is not None), default=None)
