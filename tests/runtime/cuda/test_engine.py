"""A whole engine on the interpreted device, with a real model, says what the CPU says."""

from __future__ import annotations

import pytest

from branchline.runtime import Engine
from branchline.sampling_params import SamplingParams

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # padding, see test_triton

PROMPT = "The capital of France is"
SETTINGS = {
    "max_running": 4,
    "max_batch_tokens": 16,
    "chunk_tokens": 16,
    "kv_memory": "128MiB",
    "max_context": 1024,
}


def texts(path, device: str, *params: SamplingParams) -> list[str]:
    with Engine(str(path), device=device, check_syncs=True, **SETTINGS) as engine:
        return [engine.generate_text(PROMPT, one)[0].text for one in params]


def test_the_interpreted_device_says_what_the_cpu_says(smollm2_path) -> None:
    params = SamplingParams(max_tokens=1, temperature=0.0)
    assert texts(smollm2_path, "cuda-interpreted", params) == texts(smollm2_path, "cpu", params)


@pytest.mark.slow
def test_it_samples_what_the_cpu_samples(smollm2_path) -> None:
    drawn = SamplingParams(max_tokens=6, temperature=1.0, seed=3)
    params = [
        drawn,
        SamplingParams(max_tokens=6, temperature=0.8, seed=4, top_p=0.9, top_k=20),
        SamplingParams(max_tokens=6, temperature=1.0, seed=3, repetition_penalty=1.3),
    ]
    assert texts(smollm2_path, "cuda-interpreted", *params) == texts(smollm2_path, "cpu", *params)
