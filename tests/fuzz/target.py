"""What is fuzzed: a gateway before a runtime of which only the weights are not real.

Tokenizer, chat template and grammars are SmolLM2's; the stub takes a model's place, so a token
costs next to nothing, and every page is still checked.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING
from unittest import mock

import torch

from branchline.gateway.app import create_app
from branchline.gateway.link import RuntimeLink
from branchline.gateway.server import serving
from branchline.gateway.settings import Settings
from branchline.protocol import ModelCard
from branchline.runtime.assembly import assemble
from branchline.runtime.config import RuntimeConfig
from branchline.runtime.models.gguf_file import GGUFFile
from branchline.runtime.models.load import Loaded
from branchline.runtime.server import Server
from branchline.runtime.text import Tokenizer, cut_chat_template
from tests.gateway.http import send
from tests.runtime.stub import VOCAB, PrefixHashModel

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from branchline.runtime.assembly import Assembly
    from branchline.runtime.models.inputs import ForwardInputs

CONTEXT = 1024
SECONDS = 0.3  # that a request may take
PATIENCE = 20  # tries


class Sparse(PrefixHashModel):
    """The stub with a real model's vocabulary: it likes tokens that lie far apart."""

    context_length = CONTEXT

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.vocab_size = vocab_size
        self._liked = torch.arange(VOCAB) * (vocab_size // VOCAB)

    def forward(self, inputs: ForwardInputs) -> torch.Tensor:
        logits = super().forward(inputs)
        spread = torch.zeros((len(logits), self.vocab_size))
        spread[:, self._liked] = logits
        return spread


@dataclass
class Target:
    """A gateway and its runtime, in threads of this process."""

    url: str
    address: str
    parts: Assembly
    statuses: list[int]  # what the runtime's server has returned: nothing, while it is well

    def serves(self) -> None:
        """The next good request is served; on a busy machine it may take longer than it has."""
        body = {"prompt": "Hello", "max_tokens": 2, "temperature": 0, "ignore_eos": True}
        for _ in range(PATIENCE):
            reply = send(self.url, "/v1/completions", body)
            if reply.status != 408:
                break
        assert reply.status == 200, reply.text
        assert reply.json["usage"]["completion_tokens"] == 2
        assert not self.statuses


def _loaded(path: Path) -> Loaded:
    tokenizer = Tokenizer.from_gguf(GGUFFile(path))
    card = ModelCard(
        name="fuzzed",
        vocab_size=tokenizer.vocab_size,
        context_length=CONTEXT,
        stop_token_ids=tuple(sorted(tokenizer.stop_token_ids)),
        chat_template=cut_chat_template(tokenizer.render),
        takes_tools=tokenizer.takes_tools,
    )
    return Loaded(Sparse(tokenizer.vocab_size), tokenizer, card)  # type: ignore[arg-type]


@contextmanager
def target(folder: Path, gguf: Path) -> Iterator[Target]:
    """Serve until the block ends; the runtime must have been well until then."""
    config = RuntimeConfig(
        address=f"ipc://{folder}/fuzzed.sock",
        device="cpu",
        kv_memory="1MiB",
        max_running=32,
        check_invariants=True,
    )
    server = Server(config)
    with mock.patch("branchline.runtime.models.load.load", return_value=_loaded(gguf)):
        parts = assemble(config, server.post, lambda _: server.stop(1))
    statuses: list[int] = []
    io = threading.Thread(target=lambda: statuses.append(server.run(parts.service)))
    parts.loop.start()
    io.start()
    link = RuntimeLink(server.address)
    link.start()
    settings = Settings(timeout=SECONDS, max_body_bytes=200_000)
    try:
        with serving(create_app(link, settings)) as gateway:
            yield Target(gateway.url, server.address, parts, statuses)
            assert not statuses, "the runtime has ended"
    finally:
        link.close()
        server.stop()
        io.join()
        parts.loop.stop()
        parts.service.close()
        server.close()
