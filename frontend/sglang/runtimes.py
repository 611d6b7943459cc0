"""Runtimes that a program starts by itself, under SGLang's names for them."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, NoReturn

import branchline
from branchline.errors import InvalidRequest
from branchline.sglang import requests
from branchline.sglang.backend import Endpoint
from branchline.sglang.server_args import ServerArgs
from branchline.sglang.tokenizers import get_tokenizer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from typing import Self

    from branchline.backend import Backend
    from branchline.sglang.tokenizers import Tokenizer


class Started:
    """A runtime of this program's own, which is a backend through its `endpoint`."""

    def __init__(
        self, server_args: ServerArgs, runtime: Backend, close: Callable[[], None]
    ) -> None:
        self.server_args = server_args
        self.endpoint = Endpoint(runtime)
        self._close = close

    def shutdown(self) -> None:
        """End it. A second call does nothing."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def cache_prefix(self, prefix: str) -> None:
        """Compute a prefix ahead of its use."""
        self.endpoint.cache_prefix(prefix)

    def flush_cache(self) -> None:
        """Forget every prefix that is not in use."""
        self.endpoint.flush_cache()

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return get_tokenizer(self.server_args.model_path)

    def encode(self, prompt: Any) -> NoReturn:
        """A prompt as a vector. Refused: there are no models here for that."""
        raise InvalidRequest(f"encode({prompt!r}): models of embeddings are not served yet")

    def start_profile(self) -> None:
        """Nothing; see `Endpoint.start_profile`."""

    def stop_profile(self) -> None:
        """Nothing; see `Endpoint.start_profile`."""


class Runtime(Started):
    """A runtime in a process of its own. SGLang's server arguments, by name; see `ServerArgs`."""

    def __init__(
        self,
        model_path: str,
        log_level: str = "error",
        launch_timeout: float = 300.0,
        **arguments: Any,
    ) -> None:
        server_args = ServerArgs(model_path, log_level=log_level, **arguments)
        runtime = branchline.Runtime(startup_timeout=launch_timeout, **server_args.settings())
        super().__init__(server_args, runtime, runtime.close)
        self.url = self.generate_url = runtime.address
        self.pid = runtime.pid

    def generate(
        self, prompt: str | list[str], sampling_params: dict[str, Any] | None = None, **asked: Any
    ) -> str:
        """Continue a prompt, or each of several: SGLang's answer as JSON.

        `asked`: return_logprob, logprob_start_len, top_logprobs_num.
        """
        return json.dumps(requests.answer(self.endpoint, prompt, sampling_params, asked))

    async def async_generate(
        self, prompt: str, sampling_params: dict[str, Any] | None = None
    ) -> AsyncIterator[str]:
        """The text that continues a prompt, as it comes."""
        shown = 0
        async for piece in requests.async_pieces(self.endpoint, prompt, sampling_params):
            if len(piece["text"]) > shown:
                yield piece["text"][shown:]
                shown = len(piece["text"])

    add_request = async_generate

    async def get_server_info(self) -> dict[str, Any]:
        """What the runtime is doing."""
        return await asyncio.to_thread(self.endpoint.get_server_info)


class Engine(Started):
    """A runtime in this process. SGLang's server arguments, by name; see `ServerArgs`."""

    def __init__(self, model_path: str, **arguments: Any) -> None:
        server_args = ServerArgs(model_path, **arguments)
        engine = branchline.Engine(**server_args.settings())
        super().__init__(server_args, engine, engine.close)

    def generate(
        self,
        prompt: str | list[str],
        sampling_params: dict[str, Any] | None = None,
        *,
        stream: bool = False,
        **asked: Any,
    ) -> Any:
        """Continue a prompt, or each of several: a dict of text and meta_info, or a list of them.

        Streamed, an iterator of such dicts, each with all of the text so far.
        """
        if stream:
            return requests.pieces(self.endpoint, str(prompt), sampling_params)
        return requests.answer(self.endpoint, prompt, sampling_params, asked)

    async def async_generate(
        self,
        prompt: str | list[str],
        sampling_params: dict[str, Any] | None = None,
        *,
        stream: bool = False,
        **asked: Any,
    ) -> Any:
        """`generate` for an event loop; streamed, an async iterator."""
        if stream:
            return requests.async_pieces(self.endpoint, str(prompt), sampling_params)
        answer = requests.answer
        return await asyncio.to_thread(answer, self.endpoint, prompt, sampling_params, asked)

    def get_server_info(self) -> dict[str, Any]:
        """What the runtime is doing."""
        return self.endpoint.get_server_info()
