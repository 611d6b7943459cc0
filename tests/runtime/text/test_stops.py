"""Which stop string ends a text, against a search by brute force."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from branchline.runtime.text.stops import StopMatcher

words = st.text("ab", min_size=1, max_size=4)


def brute_force(text, stops):
    """The match with the first end; of those, the one with the first start."""
    ends = range(len(text) + 1)
    matches = [(e, e - len(s)) for e in ends for s in stops if text[:e].endswith(s)]
    return min(matches, default=None)


def feed(matcher, parts):
    for part in parts:
        match = matcher.feed(part)
        if match:
            return match.end, match.start
    return None


@given(st.lists(st.text("abc", max_size=4), max_size=8), st.lists(words, max_size=4))
def test_the_first_to_be_complete_wins_however_the_text_is_split(parts, stops):
    text = "".join(parts)
    expected = brute_force(text, stops)
    assert feed(StopMatcher(tuple(stops)), parts) == expected
    assert feed(StopMatcher(tuple(stops)), [text]) == expected


@given(st.text("abc", max_size=12), st.lists(words, max_size=4))
def test_what_is_held_is_the_longest_end_that_may_begin_a_stop(text, stops):
    if brute_force(text, stops):
        return
    matcher = StopMatcher(tuple(stops))
    matcher.feed(text)
    ends = (
        n for n in range(len(text) + 1) if any(s.startswith(text[len(text) - n :]) for s in stops)
    )
    assert matcher.held == max(ends, default=0)
