"""Engines that are asked over HTTP: how each starts, and how each forgets."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import urllib.request
from typing import TYPE_CHECKING

from measure import Stopwatch
from peers.client_side import workload
from peers.completions import MODEL, Completions
from peers.server import Server, Setup, free_port

from branchline.runtime.models.source import resolve

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from measure import Result

CORES = len(os.sched_getaffinity(0))
CONTEXT = 8192
SLOTS = 8


def branchline(*settings: str) -> Setup:
    """How Branchline starts: `branchline serve --http`, at addresses of its own."""
    port = free_port()
    command = f"""
        {sys.executable} -P -m branchline.runtime.cli serve smollm2
        --address ipc://{tempfile.gettempdir()}/branchline-{port} --http {port}
        --served-model-name {MODEL}
    """
    return Setup([*command.split(), *settings], port)


def vllm(folder: Path) -> Setup:
    """How vLLM starts: as its documentation advises for a CPU, in bfloat16."""
    venv = folder / "vllm"
    port = free_port()
    preload = [*folder.glob("tcmalloc/**/libtcmalloc_minimal.so.4"), *venv.rglob("libiomp5.so")]
    command = f"""
        {venv}/bin/python -m vllm.entrypoints.openai.api_server
        --model {folder}/model --served-model-name {MODEL} --dtype bfloat16
        --max-model-len {CONTEXT} --max-num-seqs 64 --enable-prompt-tokens-details --port {port}
    """
    environment = {
        "LD_PRELOAD": ":".join(map(str, preload)),
        "VLLM_CPU_KVCACHE_SPACE": "6",
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{CORES - 1}",
        "VLLM_CACHE_ROOT": str(folder / "vllm-cache"),
        "VLLM_SERVER_DEV_MODE": "1",  # has the call that empties the prefix cache
        "VLLM_NO_USAGE_STATS": "1",
    }
    return Setup(command.split(), port, environment)


def llama_cpp(folder: Path) -> Setup:
    """How llama.cpp's server starts: on the GGUF file itself; 8 slots did better than 64."""
    port = free_port()
    command = f"""
        {folder}/llama-server -m {resolve("smollm2")} -a {MODEL}
        -t {CORES} -tb {CORES} -np {SLOTS} -c {SLOTS * CONTEXT // 2} --kv-unified --port {port}
    """
    return Setup(command.split(), port)


class Peer:
    """An engine behind a completions server.

    Args:
        name: what the table calls it.
        setup: how its server is started.
        log: the file that gets what the server says.
        reset_path: a POST there empties the prefix cache; a server without one is started anew.
        limit: seconds after which a workload is given up.
        stays: whether its server waits for the next round, stopped; else it is started anew.
    """

    def __init__(
        self,
        name: str,
        setup: Setup,
        log: Path,
        *,
        reset_path: str | None,
        limit: float,
        stays: bool = True,
    ) -> None:
        self.name = name
        self._setup = setup
        self._log = log
        self._reset_path = reset_path
        self._limit = limit
        self._stays = stays
        self._server: Server | None = None

    def measure(self, names: Sequence[str], *, warm: bool) -> Iterator[tuple[str, Result | None]]:
        """Run each workload once; None for one that was given up."""
        if self._server is not None:
            self._server.resume()
        for name in names:
            self._forget()
            yield name, self._run(name, warm=warm)
        if not self._stays:
            self.end()
        elif self._server is not None:
            self._server.pause()

    def end(self) -> None:
        """End the server."""
        if self._server is not None:
            self._server.end()
            self._server = None

    def _forget(self) -> None:
        """A server that runs, is warmed up, and has nothing cached."""
        if self._server is not None and self._reset_path is None:
            self.end()
        if self._server is None:
            self._server = Server(self._setup, self._log)
            asyncio.run(Completions(self._server.port).complete("Hello", 4))
        if self._reset_path is not None:
            with urllib.request.urlopen(self._server.url + self._reset_path, data=b"", timeout=60):
                return

    def _run(self, name: str, *, warm: bool) -> Result | None:
        try:
            if warm:
                self._timed(name)
            return self._timed(name)
        except TimeoutError:
            self.end()  # what it still computes would slow the next workload
            return None

    def _timed(self, name: str) -> Result:
        assert self._server is not None
        client = Completions(self._server.port)
        watch = Stopwatch()
        asyncio.run(asyncio.wait_for(workload(name)(client), self._limit))
        total, saved = client.prompt_tokens, client.cached_tokens
        return watch.result(name, client.timings).with_prompts(total, saved, total - saved)
