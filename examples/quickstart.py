"""One state, three kinds of holes: `gen` writes, `select` decides, `fork` goes on in several ways.

Run it with `branchline run examples/quickstart.py`.
"""

import branchline as bl

SUBJECTS = ["biology", "history", "music"]
FOLLOW_UPS = [
    "What does a plant need for it?",
    "Where in the plant does it happen?",
    "Why does it matter to animals?",
]


@bl.function
def lesson(s, question):
    s += bl.system("You are a patient teacher who answers in one or two sentences.")
    s += bl.user(question)
    s += bl.assistant(bl.gen("answer", max_tokens=64))
    s += bl.user("Which school subject does this belong to?")
    s += bl.assistant("It belongs to " + bl.select("subject", SUBJECTS) + ".")

    # Three branches of one conversation. What has been computed so far is theirs, without a copy.
    branches = s.fork(len(FOLLOW_UPS))
    branches += lambda k: bl.user(FOLLOW_UPS[k])
    branches += bl.assistant(bl.gen("follow_up", max_tokens=64, stop="\n"))
    return branches


def show(call, meta):
    asked, cached = meta["prompt_tokens"], meta["cached_tokens"]
    print(
        f"{call:<20}{asked:>8}{cached:>8}{asked - cached:>10}{meta.get('completion_tokens', 0):>9}"
    )


if __name__ == "__main__":
    state = lesson.run("What is photosynthesis?", temperature=0)
    print(state.text())
    print("answer: ", state["answer"])
    print("subject:", state["subject"])
    for follow_up, branch in zip(FOLLOW_UPS, state.ret_value, strict=True):
        print(f"{follow_up}\n  {branch['follow_up']}")

    print("\ntokens per call       prompt  cached  computed  written")
    show("answer", state.get_meta_info("answer"))
    show(f"subject ({len(SUBJECTS)} choices)", state.get_meta_info("subject"))
    for number, branch in enumerate(state.ret_value):
        show(f"follow_up, branch {number}", branch.get_meta_info("follow_up"))
