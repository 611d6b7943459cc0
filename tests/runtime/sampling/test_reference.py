"""The sampler against a scalar one written from the definition, one row and one token at a time."""

import itertools
import math
from dataclasses import dataclass, replace
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from branchline.runtime.sampling import SampleRow, filters, sample
from branchline.sampling_params import SamplingParams

MASK = 2**32 - 1
SLACK = 2e-6  # the sampler's weights are float32: a boundary this near may fall on either side


def philox_word_pair(seed, position):
    """Words 0 and 1 of Philox4x32-10."""
    c = [position & MASK, position >> 32, 0, 0]
    k = [seed & MASK, seed >> 32]
    for _ in range(10):
        a, b = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [(b >> 32) ^ c[1] ^ k[0], b & MASK, (a >> 32) ^ c[3] ^ k[1], a & MASK]
        k = [(k[0] + 0x9E3779B9) & MASK, (k[1] + 0xBB67AE85) & MASK]
    return c[0], c[1]


def reference_uniform(seed, position):
    low, high = philox_word_pair(seed, position)
    return ((high * 2**32 + low) >> 11) / 2**53


def reference_scores(logits, row):
    """Bias, penalties and masks in float32, the type of the logits."""
    p = row.params
    scores = [np.float32(-math.inf) if math.isnan(x) else np.float32(x) for x in logits]
    for token, bias in p.logit_bias.items():
        scores[token] += np.float32(bias)
    output = [] if row.output_ids is None else list(row.output_ids)
    prompt = [] if row.prompt_ids is None else list(row.prompt_ids)
    for token in range(len(scores)):
        if token in prompt or token in output:
            r = np.float32(p.repetition_penalty)
            scores[token] = scores[token] / r if scores[token] > 0 else scores[token] * r
        count = output.count(token)
        if count:
            scores[token] -= np.float32(p.frequency_penalty * count + p.presence_penalty)
        early = row.output_len < p.min_tokens and token in row.stop_ids
        if early or (row.mask is not None and not int(row.mask[token // 32]) >> token % 32 & 1):
            scores[token] = np.float32(-math.inf)
    return [float(x) for x in scores]


def reference_survivors(scores, p, top_p, min_p):
    """{token: weight} after the filters, each applied to what the one before left."""
    highest = max(scores)
    weight = {t: math.exp((x - highest) / p.temperature) for t, x in enumerate(scores)}
    order = sorted(weight, key=lambda t: (-scores[t], t))
    if p.top_k != -1:
        order = order[: p.top_k]
    if p.top_p < 1:
        whole, running, kept = math.fsum(weight[t] for t in order), 0.0, []
        for t in order:
            kept.append(t)
            running += weight[t]
            if running >= top_p * whole:
                break
        order = kept
    return {t: weight[t] for t in sorted(order) if weight[t] >= min_p}


def reference_draw(survivors, u):
    target, running, last = u * math.fsum(survivors.values()), 0.0, 0
    for token, weight in survivors.items():
        if weight > 0:
            running, last = running + weight, token
            if running > target:
                break
    return last


def reference_ids(logits, row):
    """Every token that is right: one, but for boundaries within SLACK."""
    p = row.params
    scores = reference_scores(logits, row)
    if p.temperature == 0 or p.top_k == 1 or math.isinf(max(scores)):
        return {scores.index(max(scores))}
    u = reference_uniform(row.seed, row.position)
    found = set()
    for dp, dm, du in itertools.product((-SLACK, 0, SLACK), repeat=3):
        survivors = reference_survivors(scores, p, p.top_p + dp, p.min_p * (1 + dm))
        survivors = survivors or reference_survivors(scores, p, p.top_p, p.min_p)
        found.add(reference_draw(survivors, min(max(u + du, 0.0), 1.0)))
    return found


@dataclass(frozen=True)
class Case:
    logits: list[float]
    row: SampleRow


def some_logits(vocab):
    ties = st.integers(-6, 6).map(lambda i: i / 2)
    spread = st.floats(-30, 30, width=32, allow_subnormal=False)
    odd = st.sampled_from([-math.inf, math.nan, 0.0, -0.0, 1e30, -1e30])
    row = st.one_of(
        *(st.lists(x, min_size=vocab, max_size=vocab) for x in (ties, spread, ties | odd))
    )
    return st.one_of(row, st.just([-math.inf] * vocab), st.just([math.nan] * vocab))


def some_params(vocab):
    token = st.integers(0, vocab - 1)
    penalty = st.sampled_from([0.0, 0.0, 0.5, -1.25, 2.0])
    return st.builds(
        SamplingParams,
        min_tokens=st.integers(0, 4),
        temperature=st.sampled_from([0.0, 1e-30, 1e-3, 0.5, 1.0, 1.7, 100.0]),
        top_k=st.sampled_from([-1, 1, 2, 3, 5, 8, 1000]),
        top_p=st.sampled_from([1e-9, 0.25, 0.5, 0.9, 0.999, 1.0]),
        min_p=st.sampled_from([0.0, 0.0, 0.05, 0.5, 1.0]),
        repetition_penalty=st.sampled_from([1.0, 1.0, 1.3, 0.7]),
        frequency_penalty=penalty,
        presence_penalty=penalty,
        logit_bias=st.dictionaries(token, st.sampled_from([-100.0, 100.0, 0.5, -2.0]), max_size=3),
    )


def masks():
    """Of up to 64 tokens."""
    word = st.integers(-(2**31), 2**31 - 1)
    return st.tuples(word, word).map(lambda words: np.array(words, dtype=np.int32))


@st.composite
def batches(draw):
    vocab = draw(st.integers(1, 40))
    token = st.integers(0, vocab - 1)
    cases = []
    for _ in range(draw(st.integers(1, 5))):
        params = draw(some_params(vocab))
        output = draw(st.lists(token, max_size=6))
        row = SampleRow(
            params,
            seed=draw(st.integers(0, 2**63 - 1)),
            position=draw(st.integers(0, 2**20)),
            output_len=len(output),
            stop_ids=tuple(draw(st.sets(st.integers(-1, vocab), max_size=3))),
            prompt_ids=(
                np.array(draw(st.lists(token, max_size=6, unique=True)), dtype=np.int32)
                if params.repetition_penalty != 1
                else None
            ),
            output_ids=np.array(output, dtype=np.int32) if params.has_penalties else None,
            mask=draw(st.none() | masks()),
        )
        cases.append(Case(draw(some_logits(vocab)), row))
    return cases


@settings(max_examples=200, deadline=None)
@given(batches(), st.sampled_from([256, 2, 4]), st.sampled_from([1, 3, 32]))
def test_every_row_gets_the_token_of_the_definition(cases, narrow, group):
    logits = torch.tensor([case.logits for case in cases], dtype=torch.float32)
    before = logits.clone()
    with mock.patch.multiple(filters, _NARROW=narrow, _GROUP=group):
        ids = sample(logits, [case.row for case in cases]).ids
        alone = [sample(logits[i : i + 1], [case.row]).ids[0] for i, case in enumerate(cases)]
    for token, case in zip(ids.tolist(), cases, strict=True):
        assert token in reference_ids(case.logits, case.row)
    assert ids.tolist() == [int(token) for token in alone]
    assert torch.equal(logits.view(torch.int32), before.view(torch.int32))


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(min_p=0.02),
        SamplingParams(top_p=0.95),
        SamplingParams(top_p=0.5, temperature=0.3),
        SamplingParams(top_k=50),
        SamplingParams(top_k=3000, top_p=0.97, min_p=1e-4),
        SamplingParams(top_k=20000, temperature=2.0),
    ],
    ids=["plain", "min_p", "top_p", "cold", "top_k", "all", "wide"],
)
@pytest.mark.parametrize("ties", [False, True], ids=["float", "bfloat16"])
def test_a_real_vocabulary(params, ties):
    generator = torch.Generator().manual_seed(5)
    logits = (
        torch.randn(6, 49152, generator=generator) * torch.tensor([0.1, 1, 2, 3, 5, 8])[:, None]
    )
    logits = logits.bfloat16().float() if ties else logits
    rows = [SampleRow(params, seed=i, position=i * 7, output_len=0) for i in range(len(logits))]
    for token, values, row in zip(sample(logits, rows).ids.tolist(), logits, rows, strict=True):
        assert token in big_reference_ids(values.numpy().astype(np.float64), row)


def big_reference_ids(scores, row):
    """`reference_ids` in numpy, for a row without adjustments."""
    p = row.params
    weight = np.exp((scores - scores.max()) / p.temperature)
    order = np.lexsort((np.arange(len(scores)), -scores))[: p.top_k if p.top_k > 0 else None]
    found = set()
    share = np.cumsum(weight[order]) / weight[order].sum()
    for dp, dm, du in itertools.product((-SLACK, 0, SLACK), repeat=3):
        kept = order[: np.argmax(share >= p.top_p + dp) + 1] if p.top_p < 1 else order
        kept = np.sort(kept[weight[kept] >= p.min_p * (1 + dm)])
        cdf = np.cumsum(weight[kept]) / weight[kept].sum()
        u = reference_uniform(row.seed, row.position) + du
        found.add(int(kept[min(np.searchsorted(cdf, u, side="right"), len(kept) - 1)]))
    return found


def test_the_references_agree():
    logits = np.round(np.random.default_rng(3).normal(size=300) * 4) / 4
    for seed, (top_k, top_p) in enumerate([(-1, 1.0), (40, 1.0), (-1, 0.7), (100, 0.9)] * 5):
        params = SamplingParams(top_k=top_k, top_p=top_p, min_p=0.01)
        row = SampleRow(params, seed=seed, position=seed, output_len=0)
        assert reference_ids(logits.tolist(), row) == big_reference_ids(logits, row)
        assert reference_ids(logits.tolist(), replace(row, position=0))
