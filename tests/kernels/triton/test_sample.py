"""The draw against the CPU's sampler, which is tested against a scalar one."""

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from branchline.kernels.triton import philox
from branchline.kernels.triton.sample import sample_scores
from branchline.kernels.triton.weights import BLOCK, MOST_TOKENS
from branchline.kernels.triton.workspace import Workspace
from branchline.runtime.sampling import SampleRow, sample, uniform
from branchline.runtime.sampling.slot_rows import ROW, pack_rows
from branchline.sampling_params import SamplingParams

from .compare import random

SEEDS = (0, 1, 2**31, 2**32 - 1, 2**63 - 1, 0x0123456789ABCDEF)
DRAWN = {
    "plain": SamplingParams(),
    "min-p": SamplingParams(temperature=0.7, min_p=0.05),
    "only the likeliest": SamplingParams(min_p=1.0),
    "hot": SamplingParams(temperature=100.0),
    "cold": SamplingParams(temperature=5e-324),
}
CUT = {
    "top-k": SamplingParams(top_k=50),
    "two": SamplingParams(top_k=2),
    "more than there are": SamplingParams(top_k=10**6),
    "top-p": SamplingParams(top_p=0.9),
    "hardly any": SamplingParams(top_p=1e-12),
    "nearly all": SamplingParams(top_p=1 - 1e-15),
    "both": SamplingParams(temperature=1.3, top_k=40, top_p=0.7),
    "all three": SamplingParams(temperature=2.0, top_k=300, top_p=0.95, min_p=0.02),
    "hot top-k": SamplingParams(temperature=100.0, top_k=20),
    "cold top-p": SamplingParams(temperature=1e-30, top_p=0.5, top_k=3),
}
LOGITS = {
    "normal": lambda vocab: random(1, vocab) * 3,
    "ties": lambda vocab: (random(1, vocab) * 2).round(),
    "two values": lambda vocab: (random(1, vocab) > 1.5).float() * 4 - 30,
    "peaked": lambda vocab: random(1, vocab) * 3 + 40.0 * (torch.arange(vocab) == vocab // 2),
    "mostly impossible": lambda vocab: torch.where(
        torch.arange(vocab) % 97 == 5, random(1, vocab), -torch.inf
    ),
}


def draw(logits, rows, *, slots=None, draws=True, cut=True):
    """Ids, and what was noted in marks and last tokens, of the kernels."""
    count, vocab = logits.shape
    patch = pack_rows(range(count), rows, vocab)
    table = torch.from_numpy(patch.words[count : count * (1 + ROW)]).view(count, ROW)
    marks = torch.zeros(count, vocab, dtype=torch.int32)
    last_token = torch.full((count,), -7)
    ids = sample_scores(
        logits,
        torch.arange(count) if slots is None else torch.tensor(slots),
        torch.tensor([row.position for row in rows]),
        table,
        marks,
        last_token,
        Workspace.empty(count, vocab, torch.device("cpu")),
        draws=draws,
        cut=cut,
    )
    return ids, marks, last_token


def rows_of(params, seeds, position=9):
    """A row for each seed."""
    return [SampleRow(params, seed, position + i, 0) for i, seed in enumerate(seeds)]


@triton.jit
def uniform_kernel(seeds, positions, out):
    at = tl.program_id(0)
    tl.store(out + at, philox.uniform(tl.load(seeds + at), tl.load(positions + at)))


def test_the_random_number_is_the_cpus_bit_for_bit():
    pairs = [(seed, position) for seed in SEEDS for position in (0, 1, 8191, 2**32 + 3)]
    seeds, positions = (torch.tensor(column) for column in zip(*pairs, strict=True))
    out = torch.empty(len(pairs), dtype=torch.float64)
    uniform_kernel[(len(pairs),)](seeds, positions, out)
    assert np.array_equal(out.numpy(), uniform(seeds.numpy(), positions.numpy()))


@pytest.mark.parametrize("logits", LOGITS.values(), ids=LOGITS.keys())
@pytest.mark.parametrize("vocab", [33, BLOCK + 905])
def test_it_draws_the_tokens_that_the_cpu_draws(logits, vocab):
    rows = [row for params in (DRAWN | CUT).values() for row in rows_of(params, [3])]
    scores = logits(vocab).expand(len(rows), -1).contiguous()
    assert torch.equal(draw(scores, rows)[0], sample(scores, rows).ids)


@pytest.mark.parametrize("params", CUT.values(), ids=CUT.keys())
def test_every_survivor_and_no_other_is_drawn(params):
    """The ids of many draws: those of the CPU, which covers all of a small support."""
    scores = (random(1, 20, seed=3) * 2).round().expand(10, -1).contiguous()
    rows = rows_of(params, range(10))
    assert torch.equal(draw(scores, rows)[0], sample(scores, rows).ids)


def test_a_kept_share_is_exact_where_weights_are_equal():
    """30 % of 10 equal tokens are 3, and of 10 blocks' worth 30 % too."""
    for vocab in (10, 1000):
        rows = rows_of(SamplingParams(top_p=0.3), range(12))
        ids = draw(torch.zeros(12, vocab), rows)[0]
        assert torch.equal(ids, sample(torch.zeros(12, vocab), rows).ids)
        assert int(ids.max()) < 0.3 * vocab


def test_greedy_takes_the_lowest_of_the_highest():
    vocab = BLOCK + 16
    scores = torch.zeros(5, vocab)
    scores[0, [7, 9, BLOCK + 3]] = 2.0
    scores[1, BLOCK + 3] = 1.0
    scores[2, :] = -torch.inf
    scores[3, [40, 41]] = torch.inf
    scores[4, 0], scores[4, 5] = torch.nan, 3.0
    rows = rows_of(SamplingParams(temperature=0.0), range(5))
    for draws in (False, True):
        ids, _, last_token = draw(scores, rows, draws=draws)
        assert ids.tolist() == [7, BLOCK + 3, 0, 40, 5]
        assert torch.equal(last_token, ids)


def test_rows_without_a_choice_need_no_random_number():
    scores = torch.full((3, 100), -torch.inf)
    scores[1, [40, 41]] = torch.inf
    scores[2] = torch.nan
    for params in (SamplingParams(), SamplingParams(top_k=5, top_p=0.5)):
        assert draw(scores, rows_of(params, range(3)))[0].tolist() == [0, 40, 0]


def test_a_nan_is_impossible():
    scores = random(12, 100) * 3
    scores[:, ::3] = torch.nan
    rows = rows_of(SamplingParams(top_k=20), range(12))
    ids = draw(scores, rows)[0]
    assert torch.equal(ids, sample(scores, rows).ids)
    assert (ids % 3 != 0).all()


def test_a_row_does_not_depend_on_the_rows_beside_it():
    scores = random(4, 200) * 3
    rows = [
        row
        for params in (DRAWN["plain"], CUT["both"], DRAWN["hot"], CUT["top-p"])
        for row in rows_of(params, [5])
    ]
    together = draw(scores, rows)[0]
    for i, row in enumerate(rows):
        assert draw(scores[i : i + 1], [row])[0].tolist() == [int(together[i])]


def test_padding_stores_nothing_and_penalised_slots_count():
    params = SamplingParams(frequency_penalty=0.5)
    rows = [
        SampleRow(params, seed, 9, 0, output_ids=np.zeros(0, dtype=np.int64)) for seed in range(3)
    ]
    ids, marks, last_token = draw(random(3, 50), rows, slots=[2, -1, 0])
    assert int(ids[1]) == 0
    assert last_token.tolist() == [int(ids[2]), -7, int(ids[0])]
    assert marks.sum(1).tolist() == [1, 0, 1]
    assert int(marks[2, ids[0]]) == int(marks[0, ids[2]]) == 1


def test_a_strided_row_is_read_by_its_stride():
    wide = torch.full((3, 640), torch.nan)
    wide[:, :100] = random(3, 100) * 3
    rows = rows_of(SamplingParams(top_k=20), range(3))
    assert torch.equal(draw(wide[:, :100], rows)[0], sample(wide[:, :100].contiguous(), rows).ids)


def test_a_vocabulary_that_the_sums_cannot_hold_is_refused():
    with pytest.raises(AssertionError, match=str(MOST_TOKENS)):
        Workspace.empty(1, MOST_TOKENS + 1, torch.device("cpu"))
