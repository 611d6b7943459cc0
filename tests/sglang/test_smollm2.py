"""Programs that import sglang, under `branchline run`, on the real model."""

from __future__ import annotations

import sys
import textwrap
from typing import TYPE_CHECKING

import pytest

import branchline as bl
from branchline.runtime.cli import main
from branchline.sglang import mirror

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def address(smollm2_path: Path) -> Iterator[str]:
    with bl.Runtime("smollm2", kv_memory="512MiB") as runtime:
        yield runtime.address


@pytest.fixture
def run(
    address: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[Callable[[str], list[str]]]:
    """Runs a program; gives the lines that it printed."""
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def run(source: str) -> list[str]:
        path = tmp_path / "program.py"
        path.write_text(textwrap.dedent(source), encoding="utf-8")
        status = main(["run", "--address", address, str(path)])
        printed = capsys.readouterr()
        assert status == 0, printed.err
        return printed.out.splitlines()

    yield run
    mirror.uninstall()


def test_the_programs_where_quality_does_not_matter(run: Callable[[str], list[str]]) -> None:
    """It knows no capital."""
    printed = run("""
        import sglang as sgl
        from sglang.test.test_programs import (
            test_chat_completion_speculative, test_completion_speculative, test_expert_answer,
            test_gen_min_new_tokens, test_hellaswag_select, test_mt_bench,
            test_parallel_decoding, test_parallel_encoding, test_select, test_stream,
        )

        sgl.set_default_backend(sgl.RuntimeEndpoint("http://localhost:30000"))
        test_mt_bench()
        test_select(check_answer=False)
        test_expert_answer(check_answer=False)
        test_parallel_decoding()
        test_parallel_encoding(check_answer=False)
        test_stream()
        test_completion_speculative()
        test_chat_completion_speculative()
        test_gen_min_new_tokens("smollm2", min_tokens=32, max_tokens=40)
        accuracy, latency = test_hellaswag_select()
        print(accuracy >= 0.75, latency > 0)
        print(sgl.get_server_info()["cached_prompt_tokens"] > 300)
    """)
    assert printed == ["True True", "True"]


def test_the_programs_that_ask_for_a_shape(run: Callable[[str], list[str]]) -> None:
    """A small model has the shapes right, as only a constraint makes it; not the facts."""
    printed = run("""
        import sglang as sgl
        from sglang.test.test_programs import (
            test_decode_int, test_decode_json, test_decode_json_regex, test_dtype_gen, test_react,
            test_regex, test_tool_use,
        )

        sgl.set_default_backend(sgl.RuntimeEndpoint("http://localhost:30000"))
        test_decode_int(check_answer=False)
        test_decode_json_regex()
        test_decode_json()
        test_tool_use(check_answer=False)
        test_react()
        test_regex()
        test_dtype_gen()
        print("done")
    """)
    assert printed == ["done"]


def test_decoding_along_first_tokens(run: Callable[[str], list[str]]) -> None:
    printed = run("""
        from math import exp

        import sglang as sgl

        @sgl.function
        def decode(s, question, paths):
            s += sgl.user(question)
            s += sgl.assistant_begin()
            first = s.fork(1)[0]
            forks = s.fork(paths)
            first += sgl.gen(
                "top", max_tokens=0, return_logprob=True, top_logprobs_num=paths,
                return_text_in_logprobs=True,
            )
            tops = first.get_meta_info("top")["output_top_logprobs"][0]
            for fork, (logprob, token, text) in zip(forks, tops):
                fork += text
                fork += sgl.gen(
                    "answer", temperature=0, max_tokens=8, return_logprob=True, top_logprobs_num=2
                )
            return [(exp(logprob), text) for logprob, _, text in tops], forks

        state = decode.run("What is the capital of France?", 4)
        tops, forks = state.ret_value
        probabilities = [probability for probability, _ in tops]
        print(probabilities == sorted(probabilities, reverse=True), sum(probabilities) < 1)
        print(tops[0][1], len({text for _, text in tops}))
        for fork, (_, text) in zip(forks, tops):
            meta = fork.get_meta_info("answer")
            texts = [text for _, _, text in meta["output_token_logprobs"]]
            assert "".join(texts).startswith(fork["answer"]), texts
            assert len(meta["output_top_logprobs"]) == meta["completion_tokens"]
        print(tops[0][1] + forks[0]["answer"])
    """)
    assert printed[0] == "True True"
    assert printed[1] == "The 4"
    assert printed[2].startswith("The capital of France is Paris")


def test_special_tokens_in_text_and_tokenizers(run: Callable[[str], list[str]]) -> None:
    """A conversation that a program writes itself is the one that roles make: it is all cached."""
    printed = run("""
        import sglang as sgl
        from sglang.srt.utils.hf_transformers_utils import get_tokenizer

        @sgl.function
        def by_roles(s):
            s += sgl.user("Name a colour.") + sgl.assistant(sgl.gen("x"))

        @sgl.function
        def by_hand(s, text):
            s += text + sgl.gen("x")

        roles = by_roles.run(temperature=0, max_new_tokens=4)
        text = roles.text().partition(roles["x"])[0]
        hand = by_hand.run(text, temperature=0, max_new_tokens=4)
        print(hand["x"] == roles["x"])
        meta = hand.get_meta_info("x")
        print(meta["prompt_tokens"] - meta["cached_tokens"])
        tokenizer = get_tokenizer("smollm2")
        print(len(tokenizer.encode(text)) == meta["prompt_tokens"])
        turns = [{"role": "user", "content": "Name a colour."}]
        asked = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        print(asked == text)
    """)
    assert printed == ["True", "1", "True", "True"], "the last token is computed in any case"
