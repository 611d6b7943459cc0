"""The ranking, beside a dict that is searched."""

import random

from branchline.runtime.ranking import SLACK, Ranking


def test_random_use_agrees_with_a_dict():
    rng = random.Random(4)
    ranking: Ranking[str] = Ranking()
    right: dict[str, tuple[int, int]] = {}
    for _ in range(20_000):
        item = rng.choice("abcdefghijklmnop")
        if rng.random() < 0.4:
            ranking.put(item, None)
            right.pop(item, None)
        else:
            right[item] = (rng.randrange(20), "abcdefghijklmnop".index(item))
            ranking.put(item, right[item])
        assert len(ranking) == len(right)
        assert ranking.least() == min(right.values(), default=None)
        assert ranking.first() == min(right, key=right.__getitem__, default=None)


def test_outdated_entries_do_not_pile_up():
    ranking: Ranking[str] = Ranking()
    ranking.put("first", (0,))
    for key in range(1, 1000):
        ranking.put("other", (key,))
        assert ranking.first() == "first"
        assert len(ranking._heap) <= 2 * len(ranking) + SLACK
    ranking.put("first", None)
    assert (ranking.first(), ranking.least()) == ("other", (999,))
