"""What 8 bits cost: int8 against float32 over MT-bench prompts and the answers to them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from branchline.kernels import int8_is_exact
from branchline.runtime.models.load import Loaded, load

from .conftest import Row, run, scattered

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from torch import Tensor

pytestmark = pytest.mark.skipif(not int8_is_exact(), reason="the processor has no VNNI")

ANSWER = 64  # tokens


@pytest.fixture(scope="module")
def int8(smollm2_path: Path) -> Loaded:
    return load(smollm2_path, quantization="int8")


def conversations(loaded: Loaded, questions: list[dict]) -> Iterator[tuple[list[int], list[int]]]:
    """Each question as a chat prompt, and the float32 model's greedy answer to it, 8 at once."""
    tokenizer, model = loaded.tokenizer, loaded.model
    for start in range(0, len(questions), 8):
        texts = [
            tokenizer.render(
                [{"role": "user", "content": one["turns"][0]}], add_generation_prompt=True
            )
            for one in questions[start : start + 8]
        ]
        prompts = [tokenizer.encode((("template", text),)) for text in texts]
        longest = max(map(len, prompts)) + ANSWER
        model.allocate(len(prompts) * longest + 1)
        pages = scattered(len(prompts) * longest + 1).view(len(prompts), longest)
        ids = [list(prompt) for prompt in prompts]
        done = [0] * len(ids)
        for _ in range(ANSWER):
            rows = [Row(ids[i][done[i] :], done[i], pages[i]) for i in range(len(ids))]
            done = [len(one) for one in ids]
            for one, logits in zip(ids, run(model, rows), strict=True):
                one.append(int(logits[-1].argmax()))
        for prompt, one in zip(prompts, ids, strict=True):
            answer = one[len(prompt) :]
            if 2 in answer:
                answer = answer[: answer.index(2) + 1]
            yield prompt, answer


def logprobs(loaded: Loaded, ids: list[int]) -> Tensor:
    loaded.model.allocate(len(ids) + 1)
    (logits,) = run(loaded.model, [Row(ids, 0, scattered(len(ids) + 1))])
    return logits.log_softmax(dim=-1)


def costs(float32: Loaded, int8: Loaded, questions: list[dict]) -> dict[str, float]:
    """KL divergence and agreement over all tokens, and what the answers' NLL rises by."""
    divergence, agree, nll, tokens = 0.0, 0, torch.zeros(2), 0
    for prompt, answer in conversations(float32, questions):
        ids = prompt + answer
        exact, rounded = logprobs(float32, ids), logprobs(int8, ids)
        divergence += float((exact.exp() * (exact - rounded)).sum())
        agree += int((exact.argmax(-1) == rounded.argmax(-1)).sum())
        places = torch.arange(len(prompt) - 1, len(ids) - 1)
        nll -= torch.stack((exact, rounded))[:, places, answer].sum(dim=1)
        tokens += len(ids)
    return {
        "kl": divergence / tokens,
        "same_top": agree / tokens,
        "nll_rise": float(nll[1] / nll[0]) - 1,
    }


@pytest.mark.parametrize(
    "count",
    [pytest.param(8, id="8"), pytest.param(80, id="all", marks=pytest.mark.slow)],
)
def test_int8_stays_close_to_float32(
    smollm2: Loaded, int8: Loaded, mt_bench: list[dict], count: int
) -> None:
    found = costs(smollm2, int8, mt_bench[:: len(mt_bench) // count])
    print({name: round(value, 4) for name, value in found.items()})
    assert found["kl"] <= 0.02
    assert found["nll_rise"] <= 0.025
    assert found["same_top"] >= 0.9
