"""Programs that a backend of SGLang's must run: `sglang.test.test_programs`.

Each runs on the default backend and asserts what it should come to; what a small model cannot be
expected to know is asserted only where a parameter says so.
"""

from __future__ import annotations

from branchline.sglang.chat_programs import (
    test_chat_completion_speculative,
    test_completion_speculative,
    test_expert_answer,
    test_gen_min_new_tokens,
    test_image_qa,
    test_mt_bench,
    test_parallel_decoding,
    test_parallel_encoding,
    test_stream,
)
from branchline.sglang.text_programs import (
    test_decode_int,
    test_decode_json,
    test_decode_json_regex,
    test_dtype_gen,
    test_few_shot_qa,
    test_hellaswag_select,
    test_react,
    test_regex,
    test_select,
    test_tool_use,
)

__all__ = [
    "test_chat_completion_speculative",
    "test_completion_speculative",
    "test_decode_int",
    "test_decode_json",
    "test_decode_json_regex",
    "test_dtype_gen",
    "test_expert_answer",
    "test_few_shot_qa",
    "test_gen_min_new_tokens",
    "test_hellaswag_select",
    "test_image_qa",
    "test_mt_bench",
    "test_parallel_decoding",
    "test_parallel_encoding",
    "test_react",
    "test_regex",
    "test_select",
    "test_stream",
    "test_tool_use",
]
