"""What recalling answers saves: how much of the last turn's prompt is found in the cache.

usage: python benchmarks/recall.py [--chats N] [--tokens N] [--temperature X]

Chats of four turns: the two questions of a prompt of MT-bench, then the two of the next one. The
client does what chat clients do: it sends the whole conversation each time, answers as text. The
same chats run twice, with the memory of answers and (`deterministic`) without.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
from dataclasses import dataclass
from pathlib import Path

from branchline import Engine, eventloop
from branchline.protocol import Conversation, Generate, Usage
from branchline.sampling_params import SamplingParams

DATA = Path(__file__).parent / "data" / "mt_bench.jsonl"
AT_A_TIME = 8


@dataclass(frozen=True)
class Turn:
    """What one turn of a chat cost, and what a perfect memory would have found."""

    usage: Usage
    known: int  # tokens that the turns before had computed


def chats(count: int) -> list[list[str]]:
    """The questions of each chat."""
    rows = [json.loads(line)["turns"] for line in DATA.read_text().splitlines()]
    return [rows[i] + rows[(i + 1) % len(rows)] for i in range(count)]


async def talk(engine: Engine, questions: list[str], params: SamplingParams) -> list[Turn]:
    """One chat, a turn after the other."""
    messages: list[dict[str, str]] = []
    turns: list[Turn] = []
    known = 0
    for question in questions:
        messages.append({"role": "user", "content": question})
        request = Generate(
            engine.new_rid(),
            params=params,
            stream=False,
            conversation=Conversation(tuple(messages)),
        )
        async for update in engine.generate(request):
            assert update.usage is not None, "one update, at the end"
            messages.append({"role": "assistant", "content": update.text})
            turns.append(Turn(update.usage, known))
            known = update.usage.prompt_tokens + update.usage.completion_tokens - 1
    return turns


async def talk_to_all(engine: Engine, count: int, params: SamplingParams) -> list[list[Turn]]:
    """All chats, some at a time."""
    room = asyncio.Semaphore(AT_A_TIME)

    async def one(questions: list[str]) -> list[Turn]:
        async with room:
            return await talk(engine, questions, params)

    return await asyncio.gather(*map(one, chats(count)))


def main() -> None:
    """Run both, print a line for each turn."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--chats", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=96, help="of each answer, at most")
    parser.add_argument("--temperature", type=float, default=0.8)
    arguments = parser.parse_args()
    params = SamplingParams(max_tokens=arguments.tokens, temperature=arguments.temperature, seed=7)
    print("turn  recall  prompt  found  of known  recalled   (means, tokens)")
    for deterministic in (True, False):
        with Engine(arguments.model, deterministic=deterministic) as engine:
            talks = eventloop.run(talk_to_all(engine, arguments.chats, params))
        for index, turns in enumerate(zip(*talks, strict=True)):
            prompt, found, recalled = (
                statistics.mean(getattr(turn.usage, name) for turn in turns)
                for name in ("prompt_tokens", "cached_tokens", "recalled_tokens")
            )
            known = statistics.mean(turn.known for turn in turns)
            share = f"{found / known:8.1%}" if known else "       -"
            label = "without" if deterministic else "with"
            print(f"{index + 1:4}  {label:7} {prompt:6.0f} {found:6.0f}  {share}  {recalled:8.0f}")


if __name__ == "__main__":
    main()
