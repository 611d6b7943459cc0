"""The workloads as a client of a completions server writes them: it sends the whole text each time.

The same prompts in the same order, with the same waits, as the programs of `workloads.py`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from workloads import (
    BATCHES,
    CHAT_ROLE,
    CHAT_TOKENS,
    PLAN_TOKENS,
    SCORE_TOKENS,
    chats,
    tree_questions,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from peers.completions import Completions


async def batch(client: Completions, name: str) -> None:
    prompts, tokens = BATCHES[name]
    await asyncio.gather(*(client.complete(prompt, tokens) for prompt in prompts()))


async def chat16(client: Completions) -> None:
    await asyncio.gather(*(_chat(client, turns) for turns in chats()))


async def _chat(client: Completions, turns: list[str]) -> None:
    history = CHAT_ROLE
    for turn in turns:
        history += f"\nUser: {turn}\nAssistant:"
        history += await client.complete(history, CHAT_TOKENS)


async def tree(client: Completions) -> None:
    await asyncio.gather(*(_think(client, question) for question in tree_questions()))


async def _think(client: Completions, question: str) -> None:
    starts = [f"{question} (plan {k})" for k in range(3)]
    plans = await asyncio.gather(*(client.complete(start, PLAN_TOKENS) for start in starts))
    for start, plan in zip(starts, plans, strict=True):
        await asyncio.gather(*(_step(client, f"{start}{plan}\nStep {j}:") for j in range(3)))


async def _step(client: Completions, prompt: str) -> None:
    step = await client.complete(prompt, PLAN_TOKENS)
    await client.complete(f"{prompt}{step}\nScore:", SCORE_TOKENS)


def workload(name: str) -> Callable[[Completions], Awaitable[None]]:
    """A workload by its name."""
    if name in BATCHES:
        return lambda client: batch(client, name)
    return {"chat16": chat16, "tree": tree}[name]


NAMES = (*BATCHES, "chat16", "tree")
