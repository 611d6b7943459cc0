"""The command line of SGLang's benchmarks: `sglang.test.test_utils`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from branchline.sglang.config import global_config
from branchline.sglang.endpoint import RuntimeEndpoint
from branchline.sglang.hosted import OpenAI

if TYPE_CHECKING:
    import argparse

    from branchline.sglang.backend import BaseBackend

DEVICES = ("auto", "cuda", "rocm", "cpu")


def add_common_sglang_args_and_parse(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Add the flags that every benchmark has, and read the command line."""
    parser.add_argument("--parallel", type=int, default=64)
    parser.add_argument("--host", default="http://127.0.0.1")
    parser.add_argument("--port", type=int, default=30000)
    parser.add_argument("--backend", default="srt")
    parser.add_argument("--device", default="auto", choices=DEVICES)
    parser.add_argument("--result-file", default="result.jsonl")
    parser.add_argument("--raw-result-file")
    return parser.parse_args()


def select_sglang_backend(args: argparse.Namespace) -> BaseBackend:
    """The backend that `--backend` names.

    Raises:
        ValueError: it names none.
    """
    if args.backend.startswith("srt"):
        if args.backend == "srt-no-parallel":
            global_config.enable_parallel_encoding = False
        return RuntimeEndpoint(f"{args.host}:{args.port}")
    if args.backend.startswith("gpt-"):
        return OpenAI(args.backend)
    raise ValueError(f"--backend {args.backend}: must be srt, srt-no-parallel or gpt-…")
