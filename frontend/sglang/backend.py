"""What SGLang calls a backend, and the one that puts its ways on top of one of Branchline's."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, cast

from branchline import eventloop
from branchline.backend import constrains, takes_hints
from branchline.default_backend import resolve_backend
from branchline.errors import InvalidRequest
from branchline.protocol import Generate, ModelCard
from branchline.sampling_params import SamplingParams
from branchline.sglang.chat_templates import ChatTemplate, get_chat_template
from branchline.sglang.config import global_config
from branchline.sglang.constraints import watched
from branchline.sglang.params import Params
from branchline.sglang.tokenizers import token_text

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from branchline.backend import Backend
    from branchline.protocol import Prompt, Score, Scored, Update
    from branchline.runtime_info import RuntimeInfo


class BaseBackend:
    """What programs and tests call on a backend besides running on it; here it does nothing."""

    support_concate_and_append = False

    def __init__(self) -> None:
        self.chat_template = get_chat_template("default")

    @property
    def card(self) -> ModelCard:
        """What tracing a program needs: how turns read."""
        return ModelCard("none", 0, 0, (), self.chat_template.for_runtime())

    def get_model_name(self) -> str:
        """The model that answers."""
        raise NotImplementedError

    def get_chat_template(self) -> ChatTemplate:
        """How it writes a turn."""
        return self.chat_template

    def cache_prefix(self, prefix_str: str) -> None:
        """Compute a prefix ahead of its use."""

    def uncache_prefix(self, rid: str) -> None:
        """The runtime decides what to forget."""

    def begin_program(self, s: object) -> None:
        """Nothing is to be done."""

    def end_program(self, s: object) -> None:
        """Nothing is to be done."""

    def flush_cache(self) -> None:
        """Forget every prefix that is not in use."""

    def get_server_info(self) -> dict[str, Any] | None:
        """What the runtime is doing, if there is one."""

    def shutdown(self) -> None:
        """Leave it."""


class Endpoint(BaseBackend):
    """A Branchline backend with SGLang's ways.

    Special tokens in a program's text are special tokens, a number's gen ends at white space, and
    `stop_regex` is watched over here.

    Args:
        runtime: what answers.
        chat_template_name: a template of SGLang's in place of the model's own.
    """

    parses_program_text = True
    enforces = True  # what answers holds its model to a grammar

    def __init__(self, runtime: Backend, chat_template_name: str | None = None) -> None:
        super().__init__()
        self.runtime = runtime
        self._card = runtime.card
        if chat_template_name is not None:
            self.chat_template = get_chat_template(chat_template_name)
            self._card = replace(self._card, chat_template=self.chat_template.for_runtime())
        elif runtime.card.chat_template is not None:
            self.chat_template = ChatTemplate.of_model(runtime.card.name, runtime.card)
        self.constrains = constrains(runtime)
        if takes_hints(runtime):
            self.ended = runtime.ended

    # ------------------------------------------------------------------ a backend of Branchline

    @property
    def card(self) -> ModelCard:
        """The model that answers, with the template that was asked for."""
        return self._card

    def new_rid(self) -> str:
        """An rid that is unique on the connection."""
        return self.runtime.new_rid()

    def generate(self, request: Generate) -> AsyncIterator[Update]:
        """The updates of a request.

        Raises:
            NotAsPromised: what answers does not enforce grammars, and a text has ended that breaks
                its `dtype`, `regex` or `json_schema`.
        """
        params = request.params
        plain = replace(request, prompt=self._parsed(request.prompt), params=_plain(params))
        if not isinstance(params, Params) or (self.enforces and not params.stop_regex):
            return self.runtime.generate(plain)
        if not self.enforces:
            plain = replace(plain, params=replace(plain.params, grammar=params.grammar))
        # To end a text where a stop_regex matches, it must be seen as it comes.
        plain = replace(plain, stream=plain.stream or bool(params.stop_regex))
        updates = cast("AsyncGenerator[Update, None]", self.runtime.generate(plain))
        return watched(updates, params, checks=not self.enforces)

    async def score(self, request: Score) -> Scored:
        """The log-likelihoods of the choices."""
        return await self.runtime.score(replace(request, prompt=self._parsed(request.prompt)))

    async def flush(self) -> int:
        """Drop every cached prefix that nobody holds."""
        return await self.runtime.flush()

    async def info(self) -> RuntimeInfo:
        """What the runtime is doing."""
        return await self.runtime.info()

    # ------------------------------------------------------------------ a backend of SGLang

    @property
    def model_info(self) -> dict[str, Any]:
        """What benchmarks read of the model."""
        return {"model_path": self._card.name, "is_generation": True}

    def get_model_name(self) -> str:
        """The model that answers."""
        return self._card.name

    def cache_prefix(self, prefix_str: str) -> None:
        """Compute a prefix ahead of its use."""
        eventloop.run(self._compute(prefix_str))

    def flush_cache(self) -> None:
        """Forget every prefix that is not in use."""
        eventloop.run(self.flush())

    def get_server_info(self) -> dict[str, Any]:
        """What the runtime is doing."""
        return self.model_info | asdict(eventloop.run(self.info()))

    def start_profile(self) -> None:
        """Nothing: `get_server_info` has the times of the loop's parts at any time."""

    def stop_profile(self) -> None:
        """Nothing; see `start_profile`."""

    def token_text(self, token: int) -> str | None:
        """The text of one token; None where the model's tokenizer is not at hand."""
        return token_text(self._card.name, token)

    def _parsed(self, prompt: Prompt) -> Prompt:
        """The prompt with special tokens in program text, which the language never parses."""
        if not self.parses_program_text:
            return prompt
        return tuple(("template", piece[1]) if piece[0] == "program" else piece for piece in prompt)

    async def _compute(self, prefix: str) -> None:
        prompt: Prompt = (("template", prefix),)
        request = Generate(self.new_rid(), prompt, SamplingParams(max_tokens=0), stream=False)
        async for _ in self.runtime.generate(request):
            pass


def as_endpoint(backend: Any = None) -> Endpoint:
    """What a program of SGLang's runs on: the backend given, else the default one.

    Raises:
        InvalidRequest: there is neither, or it is none of Branchline's.
    """
    chosen = global_config.default_backend if backend is None else backend
    chosen = getattr(chosen, "endpoint", chosen)  # a Runtime or an Engine has one
    if isinstance(chosen, Endpoint):
        return chosen
    if isinstance(chosen, BaseBackend):
        raise InvalidRequest(
            f"{type(chosen).__name__} is a backend of SGLang's, which answers in its own way; to "
            "answer programs here it needs the methods of branchline.backend.Backend"
        )
    return Endpoint(resolve_backend(chosen))


def _plain(params: SamplingParams) -> SamplingParams:
    plain = params.plain() if isinstance(params, Params) else params
    return replace(plain, skip_special_tokens=global_config.skip_special_tokens_in_output)
