"""A tree of thought by nested forks: three ideas, two thoughts on each, a vote on every leaf.

Run it with `branchline run examples/tree_of_thought.py`.
"""

import branchline as bl

TASK = "Suggest a birthday present for my grandmother, who loves her garden."
BEGINNINGS = ["a book about", "a day trip to", "a set of"]
THOUGHTS = ["Why would she like it?", "How much does it cost?"]


@bl.function
def think(s, task):
    s += bl.system("You are a helpful assistant who answers in one sentence.")
    s += bl.user(task)
    return [leaf for idea in propose(s) for leaf in consider(idea)]


def propose(s):
    ideas = s.fork(len(BEGINNINGS))
    ideas += lambda k: bl.assistant(
        f"My idea is {BEGINNINGS[k]}" + bl.gen("idea", max_tokens=32, stop=[".", "\n"]) + "."
    )
    return ideas


def consider(idea):
    leaves = idea.fork(len(THOUGHTS))
    leaves += lambda k: bl.user(THOUGHTS[k])
    leaves += bl.assistant(bl.gen("thought", max_tokens=32, stop="\n"))
    leaves += bl.user("Is this a good present? Answer yes or no.")
    leaves += bl.assistant(bl.select("vote", ["Yes", "No"]))
    return leaves


def confidence(leaf):
    """How much likelier a yes is than a no, by the mean log-probability of their tokens."""
    yes, no = leaf.get_meta_info("vote")["normalized_prompt_logprobs"]
    return yes - no


if __name__ == "__main__":
    leaves = think.run(TASK, temperature=0).ret_value
    best = max(leaves, key=confidence)
    for number, leaf in enumerate(leaves):
        beginning = BEGINNINGS[number // len(THOUGHTS)]
        print(f"{'*' if leaf is best else ' '} {confidence(leaf):+.2f} {beginning}{leaf['idea']}")
        print(f"          {THOUGHTS[number % len(THOUGHTS)]} {leaf['thought']}")
    metas = [leaf.get_meta_info("thought") for leaf in leaves]
    asked, cached = (sum(m[key] for m in metas) for key in ("prompt_tokens", "cached_tokens"))
    print(f"\nthoughts: {cached} of {asked} prompt tokens came from the cache")
