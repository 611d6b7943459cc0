"""Programs in plain text, without turns; see `test_programs`."""

from __future__ import annotations

import json
import re
import time
from typing import TYPE_CHECKING, Any

from branchline.sglang.api import function, gen, gen_int, gen_string, select
from branchline.sglang.ir import REGEX_FLOAT, REGEX_INT, REGEX_STR

if TYPE_CHECKING:
    from collections.abc import Sequence

CAPITALS = (
    "Q: Which city is the capital of France?\nA: Paris\n"
    "Q: Which city is the capital of Germany?\nA: Berlin\n"
    "Q: Which city is the capital of Italy?\nA: Rome\n"
)
SENTIMENTS = ("positive", "negative", "neutral")
IP_ADDRESS = r"((25[0-5]|2[0-4]\d|[01]?\d?\d)\.){3}(25[0-5]|2[0-4]\d|[01]?\d?\d)"


def test_few_shot_qa() -> None:
    """A question after worked examples: once, and three at a time."""

    @function
    def capital(s: Any, country: str) -> None:
        s += CAPITALS
        s += f"Q: Which city is the capital of {country}?\nA:" + gen(
            "city", stop="\n", temperature=0
        )

    state = capital.run(country="the United States", max_new_tokens=16)
    assert "washington" in state["city"].lower(), state.text()

    countries = ["Japan", "the United Kingdom", "China"]
    states = capital.run_batch([{"country": one} for one in countries], max_new_tokens=16)
    answers = [one["city"].strip().lower() for one in states]
    assert answers == ["tokyo", "london", "beijing"], answers


def test_select(check_answer: bool = True) -> None:
    """One of three labels, for each of three reviews."""

    @function
    def label(s: Any, review: str) -> None:
        s += "Review: I would buy it again any time.\nSentiment: positive\n"
        s += "Review: It broke on the first day.\nSentiment: negative\n"
        s += "Review: It is a chair.\nSentiment: neutral\n"
        s += f"Review: {review}\nSentiment: " + select("label", SENTIMENTS)

    reviews = {
        "A wonderful gift, we all love it.": "positive",
        "Loud, slow and far too expensive.": "negative",
        "It comes in a box.": "neutral",
    }
    states = label.run_batch([{"review": review} for review in reviews])
    for state, right in zip(states, reviews.values(), strict=True):
        assert state["label"] in ([right] if check_answer else SENTIMENTS), state.text()


def test_decode_int(check_answer: bool = True) -> None:
    """Two whole numbers; which ones is asserted if asked."""

    @function
    def count(s: Any) -> None:
        s += "A day has " + gen_int("hours") + " hours.\n"
        s += "A year that is no leap year has " + gen_int("days") + " days.\n"

    state = count.run(temperature=0.1)
    hours, days = int(state["hours"]), int(state["days"])
    assert not check_answer or (hours, days) == (24, 365), state.text()


def test_decode_json_regex() -> None:
    """A JSON object whose values are generated one by one, each by a regular expression."""

    @function
    def city(s: Any, name: str) -> None:
        s += f"Facts about {name} as JSON:\n"
        with s.var_scope("json"):
            s += "{\n"
            s += '  "name": ' + gen(regex=REGEX_STR, stop=[",", "\n"]) + ",\n"
            s += '  "population": ' + gen(regex=REGEX_INT, stop=[" ", ",", "\n"]) + ",\n"
            s += '  "latitude": ' + gen(regex=REGEX_FLOAT, stop=[" ", ",", "\n"]) + "\n"
            s += "}"

    _check_city(city.run(name="Lisbon", temperature=0)["json"])


def test_decode_json() -> None:
    """The same by dtype, and by the functions that stand for one."""

    @function
    def city(s: Any, name: str) -> None:
        s += f"Facts about {name} as JSON:\n"
        with s.var_scope("json"):
            s += "{\n"
            s += '  "name": ' + gen_string(stop=[",", "\n"]) + ",\n"
            s += '  "population": ' + gen_int(stop=[","]) + ",\n"
            s += '  "latitude": ' + gen(dtype=float, stop=[","]) + "\n"
            s += "}"

    _check_city(city.run(name="Lisbon", temperature=0)["json"])


def _check_city(text: str) -> None:
    facts = json.loads(text)
    assert isinstance(facts["name"], str), text
    assert isinstance(facts["population"], int), text
    assert isinstance(facts["latitude"], float), text


def test_tool_use(check_answer: bool = True) -> None:
    """A calculator that Python works: its arguments are generated, its result is appended.

    What the model makes of the result is asserted if asked.
    """

    @function
    def calculate(s: Any, left: int, right: int) -> None:
        s += "calculate(3, 5) -> 15\ncalculate(12, 4) -> 48\n"
        with s.var_scope("call"):
            s += f"calculate({left}, " + gen_int("right", stop=")") + ")"
        s += f" -> {left * int(s['right'])}"
        s += f"\nSo {left} times {right} is " + gen_int("answer", stop=[".", "\n"]) + ".\n"

    state = calculate(257, 983, temperature=0)
    assert not check_answer or int(state["answer"]) == 257 * 983, state.text()
    assert re.fullmatch(REGEX_INT, state["right"] + "\n"), state.text()
    assert state["call"].startswith("calculate(257, "), state["call"]


def test_react() -> None:
    """Thoughts and actions in turns, until the action is to finish."""

    @function
    def react(s: Any, question: str) -> None:
        s += (
            "Question: Which river flows through the capital of Austria?\n"
            "Thought 1: The capital of Austria is Vienna.\nAction 1: Search[Vienna]\n"
            "Observation 1: Vienna lies on the Danube.\n"
            "Thought 2: The river is the Danube.\nAction 2: Finish[the Danube]\n"
        )
        s += f"Question: {question}\n"
        for step in range(1, 5):
            s += f"Thought {step}:" + gen(stop=[f"Action {step}", "Observation"])
            s += f"Action {step}: " + select("action", ["Search[", "Finish["])
            if s["action"] == "Finish[":
                s += gen("answer", stop="]") + "]\n"
                break
            s += gen("about", stop="]") + f"]\nObservation {step}:" + gen(stop="\n") + "\n"

    state = react.run("Which country has more lakes, Finland or Iceland?", temperature=0)
    answer = state["answer"].lower()
    assert "finland" in answer or "states" in answer, state.text()


def test_regex() -> None:
    """An address of the internet."""

    @function
    def address(s: Any) -> None:
        s += "Q: What is the address of Google's public name server?\nA: "
        s += gen("address", temperature=0, regex=IP_ADDRESS)

    state = address.run()
    assert re.fullmatch(IP_ADDRESS, state["address"]), state["address"]


def test_dtype_gen() -> None:
    """A value of each dtype, made Python's by the program."""

    @function
    def values(s: Any) -> None:
        s += "The name of the first month: " + gen("text", dtype=str, max_tokens=10) + "\n"
        s += "Months in a year: " + gen("whole", dtype=int, max_tokens=10) + "\n"
        s += "The number pi: " + gen("real", dtype=float, max_tokens=10) + "\n"
        s += "Two is even: " + gen("truth", dtype=bool, max_tokens=10) + "\n"

    state = values.run(temperature=0)
    state["whole"] = int(state["whole"])
    state["real"] = float(state["real"])
    state["truth"] = state["truth"] == "True"
    assert isinstance(state["text"], str)
    assert isinstance(state["whole"], int)
    assert isinstance(state["real"], float)
    assert isinstance(state["truth"], bool)


def test_hellaswag_select(
    questions: Sequence[tuple[str, Sequence[str], int]] = (), num_threads: int = 64
) -> tuple[float, float]:
    """The likeliest end of each text, after the first ones with their right ends.

    Args:
        questions: each a text, its possible ends and the index of the right one; without any, a few
            of our own.
        num_threads: programs that run at the same time.

    Returns:
        The share of right answers, and the seconds it took.
    """
    questions = questions or OWN_QUESTIONS
    shots = questions[: len(questions) // 2]
    examples = "".join(f"{text} {ends[right]}\n\n" for text, ends, right in shots)

    @function
    def finish(s: Any, text: str, ends: Sequence[str]) -> None:
        s += examples + text + " "
        s += select("end", choices=ends)

    began = time.perf_counter()
    asked = [{"text": text, "ends": list(ends)} for text, ends, _ in questions]
    states = finish.run_batch(asked, num_threads=num_threads)
    seconds = time.perf_counter() - began
    right = [
        state["end"] == ends[at] for state, (_, ends, at) in zip(states, questions, strict=True)
    ]
    return sum(right) / len(right), seconds


OWN_QUESTIONS = (
    ("She puts the kettle on the stove and", ("waits for it to boil.", "drives it to work."), 0),
    ("The dog sees the ball fly past and", ("reads the newspaper.", "runs after it."), 1),
    ("It starts to rain, so he", ("opens his umbrella.", "waters the garden."), 0),
    ("The baker takes the bread out of the", ("swimming pool.", "oven."), 1),
)
