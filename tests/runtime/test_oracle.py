"""The runtime against transformers' `generate` on SmolLM2: the same ids, near-ties aside.

Where an id differs, the oracle's two best logits there must be within NEAR_TIE; the oracle's ids
are then forced and the comparison goes on behind them.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from branchline.runtime.models.inputs import ForwardInputs
from branchline.runtime.sizing import Limits

from .runs import Runs
from .stub import DelayingStream

NEAR_TIE = 1e-3
LOGITS = 2e-3
LOGPROBS = 5e-4
NEW_TOKENS = 48
QUICK = 8


@dataclass(frozen=True)
class Answer:
    """What the oracle says of one prompt."""

    prompt: list[int]
    ids: list[int]  # greedy
    margins: list[float]  # between its two best logits at each id
    prompt_logprobs: list[float]  # of prompt[1:]


def ask_oracle(model, prompt: list[int]) -> Answer:
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=NEW_TOKENS,
            output_logits=True,
            return_dict_in_generate=True,
        )
        logprobs = model(ids).logits[0].log_softmax(-1)
    best = torch.stack([step[0].topk(2).values for step in out.logits])
    chosen = logprobs[:-1].gather(1, ids[0, 1:, None])[:, 0]
    return Answer(
        prompt,
        out.sequences[0, len(prompt) :].tolist(),
        (best[:, 0] - best[:, 1]).tolist(),
        chosen.tolist(),
    )


@pytest.fixture(scope="session")
def prompts(smollm2, mt_bench) -> list[list[int]]:
    """The first turns of MT-bench as chats, in ids."""
    card, tokenizer = smollm2.card, smollm2.tokenizer
    template = card.chat_template
    system = template.prefix["system"] + template.default_system + template.suffix["system"]
    return [
        tokenizer.encode(
            (
                ("template", system + template.prefix["user"]),
                ("program", turn),
                ("template", template.suffix["user"] + template.prefix["assistant"]),
            )
        )
        for turn in (question["turns"][0] for question in mt_bench)
    ]


@pytest.fixture(scope="session")
def quick_answers(oracle, prompts) -> list[Answer]:
    return [ask_oracle(oracle, prompt) for prompt in prompts[:QUICK]]


@pytest.fixture(scope="session")
def answers(oracle, prompts, quick_answers) -> list[Answer]:
    return quick_answers + [ask_oracle(oracle, prompt) for prompt in prompts[QUICK:]]


def compare(runs: Runs, answers: list[Answer], *, together: bool) -> None:
    """Greedy ids equal the oracle's, forced past every near-tie; prompt logprobs too."""
    groups = [answers] if together else [[answer] for answer in answers]
    for group in groups:
        requests = runs.generate([a.prompt for a in group], [NEW_TOKENS] * len(group))
        for answer, request in zip(group, requests, strict=True):
            compare_ids(runs, answer, runs.ids[request])
        scored = runs.generate([a.prompt for a in group], [0] * len(group), logprob_start=0)
        for answer, request in zip(group, scored, strict=True):
            ours = [entry.logprob for entry in runs.prompt_logprobs[request][1:]]
            torch.testing.assert_close(
                torch.tensor(ours), torch.tensor(answer.prompt_logprobs), atol=LOGPROBS, rtol=0
            )


def compare_ids(runs: Runs, answer: Answer, ours: list[int]) -> None:
    done = 0
    while ours != answer.ids[done:]:
        pairs = enumerate(zip(ours, answer.ids[done:], strict=False))
        done += next(i for i, (our, right) in pairs if our != right)
        assert answer.margins[done] < NEAR_TIE, f"id {done} differs, and it is no near-tie"
        done += 1
        (request,) = runs.generate([answer.prompt + answer.ids[:done]], [len(answer.ids) - done])
        ours = runs.ids[request]


ROOMY = Limits(pages=40_000, max_context=2048)
VARIANTS = {
    "plain": {},
    "overlap": {"overlap": True},
    "chunks of 16": {"chunk_tokens": 16, "max_batch_tokens": 128},
    "no cache": {"cache": False},
    "retracting": {"limits": Limits(pages=1200, max_context=1024)},
    "no cascade": {"cascade": False},
    "no cascade, chunks of 16": {"cascade": False, "chunk_tokens": 16, "max_batch_tokens": 128},
    "no cascade, retracting": {"cascade": False, "limits": Limits(pages=1200, max_context=1024)},
    "retracting with overlap": {"limits": Limits(pages=1200, max_context=1024), "overlap": True},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_eight_prompts(smollm2, quick_answers, variant):
    settings = dict(VARIANTS[variant])
    limits = settings.pop("limits", None)
    if limits is not None:
        limits = Limits(pages=500, max_context=400)
    runs = Runs(smollm2, limits or ROOMY, **settings)
    compare(runs, quick_answers, together=True)
    if limits is not None:
        assert runs.loop.scheduler.retractions > 0


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_eighty_prompts_at_once(smollm2, answers, variant):
    settings = {"limits": ROOMY, **VARIANTS[variant]}
    runs = Runs(smollm2, **settings)
    compare(runs, answers, together=True)
    compare(runs, answers, together=True)  # warm
    if "retracting" in variant:
        assert runs.loop.scheduler.retractions > 0


@pytest.mark.slow
def test_eighty_prompts_one_by_one_on_a_delaying_stream(smollm2, answers):
    runs = Runs(smollm2, ROOMY, overlap=True, stream=DelayingStream(1))
    compare(runs, answers, together=False)


def forced_logits(model, answer: Answer) -> torch.Tensor:
    """Our logits over the prompt and the oracle's ids, in one forward."""
    tokens = answer.prompt + answer.ids
    count = len(tokens)
    model.allocate(count + 1)
    return model.forward(
        ForwardInputs(
            input_ids=torch.tensor(tokens),
            positions=torch.arange(count),
            write_pages=torch.arange(1, count + 1),
            logit_rows=torch.arange(count),
            q_indptr=[0, count],
            kv_lens=[count],
            page_table=torch.arange(1, count + 1)[None],
            slots=[0],
        )
    )


def compare_logits(model, oracle, answers: list[Answer]) -> None:
    for answer in answers:
        with torch.inference_mode():
            right = oracle(torch.tensor([answer.prompt + answer.ids])).logits[0]
        torch.testing.assert_close(forced_logits(model, answer), right, atol=LOGITS, rtol=0)


def test_logits_of_eight_prompts(smollm2, oracle, quick_answers):
    compare_logits(smollm2.model, oracle, quick_answers)


@pytest.mark.slow
def test_logits_of_eighty_prompts(smollm2, oracle, answers):
    compare_logits(smollm2.model, oracle, answers)
