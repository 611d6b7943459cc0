"""The random numbers: the published vectors, and that they are a function of seed and position."""

import numpy as np
import pytest

from branchline.runtime.sampling import uniform
from branchline.runtime.sampling.philox import philox


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        # Random123's kat_vectors, "philox4x32 10"
        ("00000000 00000000 00000000 00000000", "00000000 00000000",
         "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff",
         "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0",
         "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)  # fmt: skip
def test_known_answers(counter, key, expected):
    def words(text):
        return tuple(np.array([int(word, 16)], dtype=np.uint64) for word in text.split())

    out = philox(words(counter), words(key))
    assert " ".join(f"{int(word[0]):08x}" for word in out) == expected


def test_uniform_takes_53_bits_of_the_first_two_words():
    bits = (0xE169C58D << 32 | 0x6627E8D5) >> 11
    assert uniform(0, 0) == bits / 2**53


def test_each_pair_has_its_own_number_whatever_it_is_asked_with():
    seeds = [0, 1, 2**32, 2**63 - 1, 2**64 - 1]
    positions = [0, 5, 2**33, 7, 0]
    together = uniform(seeds, positions)
    apart = [float(uniform(s, p)) for s, p in zip(seeds, positions, strict=True)]
    assert together.tolist() == apart
    assert len(set(apart)) == len(apart)


def test_it_is_uniform_over_positions_and_over_seeds():
    for numbers in (uniform(3, np.arange(50_000)), uniform(np.arange(50_000), 3)):
        assert numbers.min() >= 0
        assert numbers.max() < 1
        counts, _ = np.histogram(numbers, bins=100, range=(0, 1))
        chi_square = float(((counts - 500) ** 2 / 500).sum())
        assert chi_square < 99 + 5 * np.sqrt(2 * 99)
        assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.02
