"""Write the demo's model as a Hugging Face directory: the same weights, for a peer without GGUF.

usage: python dequantize.py FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

from branchline.runtime.models.source import resolve


def main() -> None:
    folder = Path(sys.argv[1])
    source = resolve("smollm2")
    model = AutoModelForCausalLM.from_pretrained(
        source.parent,
        gguf_file=source.name,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True),
    )
    model.save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    main()
