"""Three agents at a time on one thread: each awaits its tool while the others write.

Run it with `branchline run examples/async_agent.py`.
"""

import asyncio

import branchline as bl

SHOP = {
    "tent": {"price": 129, "stock": 4},
    "sleeping bag": {"price": 79, "stock": 11},
    "stove": {"price": 45, "stock": 0},
    "lamp": {"price": 19, "stock": 25},
}
EXAMPLES = """\
Question: How many stoves do you have?
Call: stock stove
Result: 0
Call: say We have no stoves.

Question: How much is a stove?
Call: price stove
Result: 45
Call: say A stove costs 45 euros.
"""
QUESTIONS = ["How much is a sleeping bag?", "How many tents do you have?", "How much is a tent?"]
MAX_CALLS = 4


async def look_up(what, item):
    """A tool that takes its time, as one over the network does."""
    await asyncio.sleep(0.2)
    return SHOP.get(item, {}).get(what, f"unknown item; known are {', '.join(SHOP)}")


@bl.function
async def agent(s, question):
    s += EXAMPLES
    s += f"\nQuestion: {question}\n"
    for call in range(MAX_CALLS):
        s += "Call: " + bl.select(f"tool {call}", ["price", "stock", "say"])
        s += bl.gen(f"argument {call}", max_tokens=24, stop="\n")
        tool, argument = await s[f"tool {call}"], (await s[f"argument {call}"]).strip()
        if tool == "say":
            return argument
        s += f"\nResult: {await look_up(tool, argument)}\n"
    return None


async def main():
    states = await asyncio.gather(*(agent(question, temperature=0) for question in QUESTIONS))
    for question, state in zip(QUESTIONS, states, strict=True):
        print(f"{question}\n  => {state.ret_value}")


if __name__ == "__main__":
    asyncio.run(main())
