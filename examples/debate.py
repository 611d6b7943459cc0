"""A debate: two forks of one conversation argue for and against, a judge decides after joining.

Run it with `branchline run examples/debate.py`.
"""

import branchline as bl

MOTION = "Every school should have a garden."
SIDES = ["for", "against"]
ROUNDS = 2
ENDS = [".", "\n"]


@bl.function
def debate(s, motion):
    s += bl.system("You are a debater. You give one reason in one short sentence.")
    speakers = s.fork(len(SIDES))
    speakers += lambda side: bl.user(f"You are {SIDES[side]} this: {motion} Why?")
    heard = []
    for turn in range(ROUNDS):
        if turn:
            speakers += [bl.user(f"They say: {other} What else?") for other in reversed(heard)]
        reason = bl.gen(f"turn {turn}", max_tokens=32, stop=ENDS)
        speakers += [bl.assistant(f"I am {side} it because" + reason) for side in SIDES]
        # Both write at the same time; each then hears what the other has said.
        heard = [f"Because{speaker[f'turn {turn}']}." for speaker in speakers]
    speakers.join()
    s += bl.user(f"{motion} What is said for it, and what against it?")
    s += bl.assistant(
        "".join(
            f"{side.capitalize()}: {' '.join(f'Because{reason}.' for reason in reasons)}\n"
            for side, reasons in zip(SIDES, zip(*turns_of(s), strict=True), strict=True)
        )
    )
    s += bl.user("You are the judge. Which side is more convincing?")
    s += bl.assistant(
        "The side " + bl.select("winner", SIDES) + " it, because"
        + bl.gen("reason", max_tokens=32, stop=ENDS) + "."
    )  # fmt: skip


def turns_of(s):
    """What the sides gave as reasons, turn by turn: a join makes lists of the forks' variables."""
    return [s[f"turn {turn}"] for turn in range(ROUNDS)]


if __name__ == "__main__":
    state = debate.run(MOTION, temperature=0)
    for reasons in turns_of(state):
        for side, reason in zip(SIDES, reasons, strict=True):
            print(f"{side:>8}: because{reason}.")
    probabilities = state.get_meta_info("winner")["probabilities"]
    print(f"The winner: {state['winner']} ({max(probabilities):.0%}), because{state['reason']}.")
