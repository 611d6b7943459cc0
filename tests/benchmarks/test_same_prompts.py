"""A program and its counterpart over HTTP ask for the same texts after the same prompts."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING

import pytest
from peers.client_side import NAMES, workload
from workloads import WORKLOADS

import branchline as bl
from branchline.protocol import Finish, Generate, ModelCard, Update, Usage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


def text_after(prompt: str, tokens: int) -> str:
    return f" {len(prompt)} and {tokens}"


class Recorder:
    """A backend that answers with `text_after` and keeps what it was asked."""

    card = ModelCard("toy", 300, 8192, ())

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []
        self._rids = itertools.count()

    def new_rid(self) -> str:
        return str(next(self._rids))

    async def generate(self, request: Generate) -> AsyncIterator[Update]:
        assert request.params.ignore_eos
        assert request.params.temperature == 0
        prompt = "".join(content for _, content in request.prompt)
        tokens = request.params.max_tokens
        self.asked.append((prompt, tokens))
        text = text_after(prompt, tokens)
        finish = Finish("length", kept=0, tail=text)
        yield Update(request.rid, text=text, finish=finish, usage=Usage(0, 0, 0))


class RecorderOverHTTP:
    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []

    async def complete(self, prompt: str, max_tokens: int) -> str:
        self.asked.append((prompt, max_tokens))
        return text_after(prompt, max_tokens)


@pytest.mark.parametrize("name", NAMES)
def test_same_prompts(name):
    ours, theirs = Recorder(), RecorderOverHTTP()
    bl.set_default_backend(ours)
    try:
        WORKLOADS[name]()
    finally:
        bl.set_default_backend(None)
    asyncio.run(workload(name)(theirs))
    assert ours.asked
    assert sorted(ours.asked) == sorted(theirs.asked)
