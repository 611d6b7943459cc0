"""The workloads: what a serving engine meets, from one chat to a tree of thought, as programs.

Prompts come from `data/`. Every text ignores EOS and all but the samples of `selfconsistency` are
greedy, so every engine does the same work.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import branchline as bl

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

DATA = Path(__file__).parent / "data"
GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True}
CHAT_ROLE = "You are a helpful assistant.\n" * 12
CHAT_TOKENS = 48  # of an answer
PLAN_TOKENS = 24  # of a plan, and of a step
SCORE_TOKENS = 4


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


def chats() -> list[list[str]]:
    """The user's 4 turns of 16 chats."""
    asked = questions()
    return [[asked[(i * 4 + t) % len(asked)][t % 2] for t in range(4)] for i in range(16)]


def tree_questions() -> list[str]:
    return few_shot(8, shots=4)


@bl.function
def complete(s: bl.ProgramState, prompt: str, tokens: int) -> None:
    s += prompt
    s += bl.gen("text", max_tokens=tokens)


@bl.function
def chat(s: bl.ProgramState, turns: list[str]) -> None:
    s += CHAT_ROLE
    for number, turn in enumerate(turns):
        s += f"\nUser: {turn}\nAssistant:"
        s += bl.gen(f"answer{number}", max_tokens=CHAT_TOKENS)


@bl.function
def tree(s: bl.ProgramState, question: str) -> None:
    """Three plans, three steps of each, a vote on each step."""
    s += question
    plans = s.fork(3)
    plans += lambda k: f" (plan {k})"
    plans += bl.gen("plan", max_tokens=PLAN_TOKENS)
    for plan in plans:
        steps = plan.fork(3)
        steps += lambda j: f"\nStep {j}:"
        steps += bl.gen("step", max_tokens=PLAN_TOKENS)
        steps += "\nScore:"
        steps += bl.gen("score", max_tokens=SCORE_TOKENS)
        steps.join()
    plans.join()


CATEGORIES = (
    "writing",
    "roleplay",
    "reasoning",
    "math",
    "coding",
    "extraction",
    "stem",
    "humanities",
)


@bl.function
def classify(s: bl.ProgramState, examples: str, question: str) -> None:
    s += f"{examples}Task: {question}\nCategory: "
    s += bl.select("category", CATEGORIES)


@bl.function
def vote(s: bl.ProgramState, prompt: str) -> None:
    """16 samples of one answer."""
    s += prompt
    s += bl.gen("answers", max_tokens=64, n=16, temperature=0.7, seed=0)


AGENT_STEPS = 5
TOOLS = """\
You solve tasks with tools. Write one call at a time, then wait for its result.
search(query): the three most relevant passages of the manual
read(page): the text of a page of the manual
calculate(expression): the value of an arithmetic expression
note(text): keep a text for later; it comes back with every further result
answer(text): give the final answer and stop
A call is one line. Say in a sentence what you expect of it before you write it.
"""


@bl.function
def agent(s: bl.ProgramState, task: str, tool: Callable[[str], str]) -> None:
    """The model writes a call, its result becomes text, and so on; then it must answer."""
    s += f"{TOOLS}\nTask: {task}\n"
    for step in range(AGENT_STEPS):
        s += "Call:"
        s += bl.gen(f"call{step}", max_tokens=24)
        s += f"\nResult: {tool(s[f'call{step}'])}\n"
    s += "Answer:"
    s += bl.gen("answer", max_tokens=48)


def scripted(results: Sequence[str]) -> Callable[[str], str]:
    """A tool that gives these results in turn, at once, whatever it is asked."""
    remaining = iter(results)
    return lambda _call: next(remaining)


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
    _at_once(chat, [{"turns": turns} for turns in chats()])


def tree8() -> None:
    """A tree of thought over 8 questions: 168 generations."""
    _at_once(tree, [{"question": question} for question in tree_questions()])


def select8() -> None:
    """The category of 32 tasks, out of 8, after one example of each category."""
    lines = read_lines("mt_bench.jsonl")
    shown = [next(line for line in lines if line["category"] == name) for name in CATEGORIES]
    examples = "".join(
        f"Task: {line['turns'][0]}\nCategory: {line['category']}\n\n" for line in shown
    )
    asked = [line["turns"][0] for line in lines if line not in shown][:64:2]
    _at_once(classify, [{"examples": examples, "question": question} for question in asked])


def selfconsistency() -> None:
    """16 samples for each of 4 questions."""
    _at_once(vote, [{"prompt": prompt} for prompt in few_shot(4)])


def agent8() -> None:
    """8 agents with 5 calls each; the results are worked solutions."""
    results = [line["answer"] for line in read_lines("gsm8k_train16.jsonl")]
    tasks = [turns[0] for turns in questions()[:8]]
    scripts = [results[number : number + AGENT_STEPS] for number in range(len(tasks))]
    items = [
        {"task": task, "tool": scripted(script)}
        for task, script in zip(tasks, scripts, strict=True)
    ]
    _at_once(agent, items)


def _at_once(program: Any, items: list[dict[str, Any]]) -> None:
    for state in program.run_batch(items, num_threads=len(items), **GREEDY):
        state.sync()


WORKLOADS: dict[str, Callable[[], None]] = {
    **{name: functools.partial(run_batch, name) for name in BATCHES},
    "chat16": chat16,
    "tree": tree8,
    "select8": select8,
    "selfconsistency": selfconsistency,
    "agent": agent8,
}
