"""A chat that streams: each turn continues the same state, so only what is new is computed.

Run it with `branchline run examples/chat.py`.
"""

import branchline as bl


@bl.function
def chat(s, read):
    s += bl.system("You are a friendly assistant who answers in one or two sentences.")
    for turn, text in enumerate(read()):
        s += bl.user(text)
        s += bl.assistant(bl.gen(f"answer {turn}", max_tokens=80))
        for piece in s.text_iter(f"answer {turn}"):
            print(piece, end="", flush=True)
        meta = s.get_meta_info(f"answer {turn}")
        print(f"\n  [{meta['cached_tokens']} of {meta['prompt_tokens']} prompt tokens cached]")


def read_lines():
    """What the user types, until the end of the input."""
    while True:
        try:
            text = input("> ")
        except EOFError:
            print()
            return
        if text.strip():
            yield text


if __name__ == "__main__":
    chat.run(read_lines, temperature=0, stream=True).sync()
