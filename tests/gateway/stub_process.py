"""A runtime whose every answer is known, behind a real socket: real loop and pages, stub model.

What follows a prompt is a function of its letters alone (`expected`), so a stream that got a page,
a token or a text of another shows.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from branchline.runtime.config import RuntimeConfig
from branchline.runtime.server import Server
from tests.runtime.whole import Whole, ids_of, right, text_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def expected(prompt: str, tokens: int) -> str:
    """The text that follows a prompt, greedy and without end."""
    return text_of(right(ids_of(prompt), tokens, ignore_eos=True))


@dataclass
class Served:
    """A whole runtime that serves from threads of this process."""

    address: str
    whole: Whole

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs or waits, and no request holds a page."""
        loop = self.whole.loop
        memory = loop.scheduler.memory
        return loop.idle and memory.private([]) == 0 and memory.tree.protected == 0


@contextmanager
def serving_stub(folder: Path, **settings: object) -> Iterator[Served]:
    """Serve until the block ends; then every page must be accounted for."""
    address = f"ipc://{folder}/stub.sock"
    server = Server(RuntimeConfig(address=address, heartbeat=0.2))
    whole = Whole(**settings)
    whole.service._post = server.post
    statuses: list[int] = []
    io = threading.Thread(target=lambda: statuses.append(server.run(whole.service)))
    whole.loop.start()
    io.start()
    try:
        yield Served(address, whole)
    finally:
        server.stop()
        io.join()
        whole.loop.stop()
        server.close()
    assert statuses == [0]
    whole.loop.check()
    whole.harness.check_idle()
