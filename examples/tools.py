"""Tools: the model calls Python functions, and can write no argument that they do not take.

Run it with `branchline run examples/tools.py`.
"""

import branchline as bl

PEOPLE = {"Oslo": 709_000, "Madrid": 3_223_000, "Lisbon": 545_000}


def weather(city: str, days: int = 1) -> str:
    """The weather of the coming days in a city.

    Args:
        city: its English name
        days: how many days
    """
    return f"{days} days of sun in {city}"


def population(city: str) -> str:
    """How many people live in a city."""
    return f"{PEOPLE[city]:,} people live in {city}"


TOOLS = [weather, population]
EXAMPLES = {
    "How many people live in Rome?": bl.Tool.of(population).written(city="Rome"),
    "What will the weather be in Bergen for 2 days?": bl.Tool.of(weather).written(
        city="Bergen", days=2
    ),
}
QUESTIONS = [
    "How many people live in Oslo?",
    "What is the weather in Paris for 3 days?",
    "Which population does Lisbon have?",
    "How many people live in Berlin?",  # the tool fails: the model is told
]


@bl.function
def answer(s, question):
    s += bl.system(bl.describe_tools(TOOLS))
    for example, call in EXAMPLES.items():
        s += bl.user(example) + bl.assistant(call)
    s += bl.user(question)
    # A small model does best with one call at a time; a large one may make several, or none.
    options = {"tool_choice": "required", "parallel_tool_calls": False}
    s += bl.assistant(bl.gen("calls", tools=TOOLS, **options))
    return bl.call_tools(s, s["calls"])  # the next turn has the results


if __name__ == "__main__":
    for question in QUESTIONS:
        state = answer.run(question, temperature=0)
        (call,), (result,), used = state["calls"], state.ret_value, state.usage["calls"]
        print(f"{question}\n  {call.name}({call.arguments}) -> {result!r}")
        print(f"  {used.forced_tokens} of {used.generated_tokens} tokens had no alternative")
