"""Typed extraction: the model writes nothing but values of Python types, and back they come.

Run it with `branchline run examples/extraction.py`.
"""

from dataclasses import dataclass
from typing import Literal

import branchline as bl


@dataclass
class Listing:
    """What somebody sells."""

    item: str
    price: int
    condition: Literal["new", "used"]


EXAMPLES = """\
Text: Selling my old guitar, plays well, 80 euros.
Listing: {"item": "guitar", "price": 80, "condition": "used"}

Text: Unopened coffee machine, still in its box. I want 120 for it.
Listing: {"item": "coffee machine", "price": 120, "condition": "new"}

Text: My son has outgrown his bicycle: 45 euros and it is yours.
Listing: {"item": "bicycle", "price": 45, "condition": "used"}
"""
TEXTS = [
    "Brand new tent, never used, 95 euros.",
    "A used desk with some scratches for 30 euros.",
    "Camera for sale, I have used it for two years. 150 euros.",
]


@bl.function
def extract(s, text):
    s += f"{EXAMPLES}\nText: {text}\nListing:"
    s += bl.gen("listing", type=Listing, max_tokens=48, stop="\n")
    s += "\nIs it under 100 euros, true or false? Answer:"
    s += bl.gen("cheap", type=bool, max_tokens=4, stop=["\n", "."])


if __name__ == "__main__":
    states = extract.run_batch([(text,) for text in TEXTS], temperature=0)
    for text, state in zip(TEXTS, states, strict=True):
        print(text)
        for name in ("listing", "cheap"):
            try:
                print(f"  {name}: {state[name]!r}")
            except bl.ProgramError as error:  # max_tokens has cut the text: says what there is
                print(f"  {name}: {error.__cause__}")
