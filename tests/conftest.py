"""What several test modules share: the real model, its oracle, the questions."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

# Triton decides for each kernel, when its module is imported, whether the interpreter runs it, on
# CPU tensors. Here it does, also in what a test starts. TRITON_INTERPRET=0 is for a device's tests.
os.environ.setdefault("TRITON_INTERPRET", "1")

DATA = Path(__file__).parent.parent / "benchmarks" / "data"


@pytest.fixture(scope="session")
def mt_bench() -> list[dict]:
    return [json.loads(line) for line in (DATA / "mt_bench.jsonl").read_text().splitlines()]


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2's GGUF, pulled when missing."""
    from branchline.runtime.models.catalog import CATALOG
    from branchline.runtime.models.pull import pull

    return pull(CATALOG["smollm2"], print)


@pytest.fixture(scope="session")
def smollm2(smollm2_path):
    """The loaded model. Its pool belongs to whoever allocated last."""
    from branchline.runtime.models.load import load

    return load(str(smollm2_path))


@pytest.fixture(scope="session")
def oracle(smollm2_path):
    """transformers' reading of the same file, in float32."""
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(
        smollm2_path.parent, gguf_file=smollm2_path.name, dtype=torch.float32
    ).eval()
