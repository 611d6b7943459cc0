"""The workloads: what a serving engine meets, from one chat to a tree of thought, as programs.

Prompts come from `data/`. Everything is greedy and ignores EOS, so every engine does the same work.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import branchline as bl

if TYPE_CHECKING:
    from collections.abc import Callable

DATA = Path(__file__).parent / "data"
GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True}


def read_lines(name: str) -> list[Any]:
    lines = (DATA / name).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def questions() -> list[list[str]]:
    """The 80 questions of MT-bench, two turns each."""
    return [line["turns"] for line in read_lines("mt_bench.jsonl")]


def few_shot(count: int, *, shots: int = 8) -> list[str]:
    """GSM8K questions, each after the same worked examples."""
    head = "".join(
        f"Question: {line['question']}\nAnswer: {line['answer']}\n\n"
        for line in read_lines("gsm8k_train16.jsonl")[:shots]
    )
    asked = read_lines("gsm8k_test.jsonl")[:count]
    return [head + f"Question: {line['question']}\nAnswer:" for line in asked]


@bl.function
def complete(s: bl.ProgramState, prompt: str, tokens: int) -> None:
    s += prompt
    s += bl.gen("text", max_tokens=tokens)


@bl.function
def chat(s: bl.ProgramState, turns: list[str]) -> None:
    s += "You are a helpful assistant.\n" * 12
    for number, turn in enumerate(turns):
        s += f"\nUser: {turn}\nAssistant:"
        s += bl.gen(f"answer{number}", max_tokens=48)


@bl.function
def tree(s: bl.ProgramState, question: str) -> None:
    """Three plans, three steps of each, a vote on each step."""
    s += question
    plans = s.fork(3)
    plans += lambda k: f" (plan {k})"
    plans += bl.gen("plan", max_tokens=24)
    for plan in plans:
        steps = plan.fork(3)
        steps += lambda j: f"\nStep {j}:"
        steps += bl.gen("step", max_tokens=24)
        steps += "\nScore:"
        steps += bl.gen("score", max_tokens=4)
        steps.join()
    plans.join()


# Workloads of one batch: what is asked, and how many tokens each answer has.
BATCHES: dict[str, tuple[Callable[[], list[str]], int]] = {
    "single": (lambda: [questions()[0][0]], 128),
    "batch32": (lambda: [turns[0] for turns in questions()[:32]], 64),
    "fewshot64": (lambda: few_shot(64), 32),  # one prefix of 8 worked examples
}


def run_batch(name: str) -> None:
    prompts, tokens = BATCHES[name]
    _at_once(complete, [{"prompt": prompt, "tokens": tokens} for prompt in prompts()])


def chat16() -> None:
    """16 chats of 4 turns, 48 tokens each; the history grows."""
    asked = questions()
    chats = [[asked[(i * 4 + t) % 80][t % 2] for t in range(4)] for i in range(16)]
    _at_once(chat, [{"turns": turns} for turns in chats])


def tree8() -> None:
    """A tree of thought over 8 questions: 168 generations."""
    _at_once(tree, [{"question": prompt} for prompt in few_shot(8, shots=4)])


def _at_once(program: Any, items: list[dict[str, Any]]) -> None:
    for state in program.run_batch(items, num_threads=len(items), **GREEDY):
        state.sync()


WORKLOADS: dict[str, Callable[[], None]] = {
    **{name: functools.partial(run_batch, name) for name in BATCHES},
    "chat16": chat16,
    "tree": tree8,
}
