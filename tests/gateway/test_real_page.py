"""The page during a real run, from the runtime's process to the browser. Draws docs/page.png."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import branchline as bl
from branchline.gateway.app import create_app
from branchline.gateway.server import serving
from branchline.launcher import Runtime

if TYPE_CHECKING:
    from .browser import Tab

pytestmark = pytest.mark.page

ROOT = Path(__file__).parents[2]
DATA = ROOT / "benchmarks" / "data"
FOLLOW_UPS = ["Why does it matter?", "Who found that out?", "Give an example.", "Say it shorter."]
BARS = "[...document.querySelectorAll('#tree g:not(.dust)')]"
UPDATES = "Number(document.documentElement?.dataset.updates)"
IDEAS = ["a book about", "a day trip to", "a set of", "an evening with"]


@bl.function
def lesson(s, question):
    s += bl.system("You are a patient teacher who answers in one or two sentences.")
    s += bl.user(question) + bl.assistant(bl.gen("answer", max_tokens=64))
    branches = s.fork(len(FOLLOW_UPS))
    branches += lambda k: bl.user(FOLLOW_UPS[k])
    branches += bl.assistant(bl.gen("follow_up", max_tokens=96))
    branches.join()


@bl.function
def arithmetic(s, examples, question):
    for example in examples:
        s += f"Question: {example['question']}\nAnswer: {example['answer']}\n\n"
    s += f"Question: {question}\nAnswer:" + bl.gen("answer", max_tokens=120, stop="\n\n")


@bl.function
def present(s, who):
    s += bl.system("You are a helpful assistant who answers in one sentence.")
    s += bl.user(f"Suggest a birthday present for {who}.")
    ideas = s.fork(len(IDEAS))
    ideas += lambda k: bl.assistant(f"My idea is {IDEAS[k]}" + bl.gen("idea", max_tokens=32))
    ideas += bl.user("What does it cost?") + bl.assistant(bl.gen("cost", max_tokens=48))
    ideas.join()


def lines(name: str) -> list[dict]:
    return [json.loads(line) for line in (DATA / name).read_text(encoding="utf-8").splitlines()]


def work(runtime: Runtime) -> None:
    """Three programs at once, each over many inputs."""
    asked = [{"question": chat["turns"][0][:200]} for chat in lines("mt_bench.jsonl")]
    examples = lines("gsm8k_train16.jsonl")[:4]
    sums = [
        {"examples": examples, "question": sum_["question"]}
        for sum_ in lines("gsm8k_test.jsonl")[:200]
    ]
    people = [{"who": who} for who in ("my grandmother", "a sailor", "two cats", "our teacher") * 9]
    batches = [(lesson, asked, 2), (arithmetic, sums, 8), (present, people, 1)]
    with ThreadPoolExecutor() as threads:
        for program, inputs, at_once in batches:
            threads.submit(program.run_batch, inputs, backend=runtime, num_threads=at_once)


def test_a_real_run(tab: Tab, smollm2_path: Path) -> None:
    settings = {"max_running": 24, "target_ttft": 2.0, "target_tpot": 0.5}
    with (
        ThreadPoolExecutor() as threads,  # left last: what still runs ends with the runtime
        Runtime(str(smollm2_path), **settings) as runtime,
        serving(create_app(runtime)) as server,
    ):
        tab.resize(1440, 1010)
        tab.open(server.url)
        tab.wait(f"{UPDATES} > 0")
        done = threads.submit(work, runtime)
        tab.wait(f"{BARS}.length > 60", seconds=120)
        updates = tab.value(UPDATES)
        tab.wait(f"{UPDATES} >= {updates} + 20", seconds=240)
        assert not done.done()

        shared = f"{BARS}.find(bar => bar.textContent.includes('patient teacher'))"
        tab.point(*tab.value(f"(b => [b.x + 9, b.y + 9])({shared}.getBoundingClientRect())"))
        tab.screenshot(ROOT / "docs" / "page.png")
        told = tab.value("document.getElementById('node').innerText")
        assert "answers in one or two sentences" in told
        assert "held by" in told
        assert "run-" in tab.value("document.getElementById('requests').innerText")
        assert tab.errors == []
        tab.leave()
