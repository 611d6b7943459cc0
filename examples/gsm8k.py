"""Few-shot arithmetic: many questions behind one prefix of worked examples, all asked at once.

A model of 135M parameters gets few of them right; the prefix is computed once all the same.

Run it with `branchline run examples/gsm8k.py [QUESTIONS]`.
"""

import json
import re
import sys
from pathlib import Path

import branchline as bl

DATA = Path(__file__).parents[1] / "benchmarks" / "data"
SHOTS = 5


def load(name):
    lines = (DATA / name).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


@bl.function
def solve(s, examples, question):
    s += examples
    s += f"Question: {question}\nAnswer:"
    s += bl.gen("answer", max_tokens=128, stop="\nQuestion:")


def final_number(text):
    """The number after '####', where the worked examples put their result; else the last number."""
    marked = re.search(r"####\s*(-?[\d,]+)", text)
    numbers = [marked[1]] if marked else re.findall(r"-?\d[\d,]*", text)
    return numbers[-1].replace(",", "") if numbers else None


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 8
    examples = "".join(
        f"Question: {shot['question']}\nAnswer: {shot['answer']}\n\n"
        for shot in load("gsm8k_train16.jsonl")[:SHOTS]
    )
    problems = load("gsm8k_test.jsonl")[:count]
    states = solve.run_batch(
        [{"examples": examples, "question": problem["question"]} for problem in problems],
        temperature=0,
        progress_bar=True,
    )
    right = 0
    for problem, state in zip(problems, states, strict=True):
        given, expected = final_number(state["answer"]), final_number(problem["answer"])
        right += given == expected
        print(f"{'ok ' if given == expected else '   '} {given!s:>8} (expected {expected})")
    metas = [state.get_meta_info("answer") for state in states]
    asked, cached = (sum(m[key] for m in metas) for key in ("prompt_tokens", "cached_tokens"))
    print(f"{right} of {count} right; {cached} of {asked} prompt tokens came from the cache")
