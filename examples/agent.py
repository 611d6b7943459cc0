"""A ReAct-like agent: the model decides what to do, Python does it, the result becomes text.

Run it with `branchline run examples/agent.py`.
"""

import branchline as bl

POPULATION = {"Oslo": 709_000, "Bergen": 291_000, "Lisbon": 545_000, "Porto": 231_000}
EXAMPLES = """\
Question: Which city has more people, Lisbon or Porto?
Action: lookup Lisbon
Result: 545000
Action: lookup Porto
Result: 231000
Action: answer Lisbon

Question: How many people live in Bergen?
Action: lookup Bergen
Result: 291000
Action: answer 291000
"""
MAX_STEPS = 6


def lookup(city):
    """The tool: a number, or a text that tells the model what went wrong."""
    return POPULATION.get(city, f"unknown city; known are {', '.join(POPULATION)}")


@bl.function
def agent(s, question):
    s += EXAMPLES
    s += f"\nQuestion: {question}\n"
    for step in range(MAX_STEPS):
        s += "Action: "
        s += bl.select(f"action {step}", ["lookup", "answer"])
        s += bl.gen(f"argument {step}", max_tokens=16, stop="\n")
        argument = s[f"argument {step}"].strip()
        if s[f"action {step}"] == "answer":
            return argument
        s += f"\nResult: {lookup(argument)}\n"
    return None


if __name__ == "__main__":
    for question in (
        "How many people live in Lisbon?",
        "Which city has more people, Oslo or Bergen?",
    ):
        state = agent.run(question, temperature=0)
        print(state.text().removeprefix(EXAMPLES))
        print(f"=> {state.ret_value}")
