"""Token ids from a GGUF file's own fields, against a plain BPE over the published patterns."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from branchline.errors import ModelError
from branchline.runtime.text import Tokenizer

from .small import GPT2, LLAMA3, bpe, gguf_fields, make, program

# Merges that reach across what some of the patterns keep apart.
MERGES = (
    *("Ġ Ġ", "Ġ a", "a b", "1 2", "12 3", "! !", "' s", "Ċ Ċ", "Ġ 1", ". Ċ", "Ġ Ċ", "ab c"),
    *("ä ¸", "ä¸ ĸ", "ĠĠ a", "ĠĠ ĠĠ", "' S", "123 4", "a '", "$ 1", "_ a"),
)
PATTERNS = {
    "smollm": [r"\p{N}", GPT2],
    "gpt-2": [GPT2],
    "llama-bpe": [LLAMA3],
    "qwen2": [LLAMA3.replace("{1,3}", "")],
    "default": [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"],
}
WHOLE = "sss"  # a token that no merge makes
texts = st.text(st.sampled_from("ab cs1234'!.\n\r\tS世界é🙂_$²①\u200d\u3000"), max_size=40)


@cache
def tokenizer_of(pre):
    fields = gguf_fields(merges=MERGES, extra=(WHOLE,), ggml__pre=pre, ggml__add_bos_token=False)
    return Tokenizer.from_gguf(fields), fields["tokenizer.ggml.tokens"]


@pytest.mark.parametrize("pre", sorted(PATTERNS))
@given(text=texts)
@settings(max_examples=150, deadline=None)
def test_the_split_is_that_of_the_files_kind(pre, text):
    tokenizer, vocabulary = tokenizer_of(pre)
    whole = (WHOLE,) if pre == "llama-bpe" else ()
    ids = tokenizer.encode((("tokens", (0,)), *program(text)))[1:]
    assert [vocabulary[i] for i in ids] == bpe(text, PATTERNS[pre], MERGES, whole)
    assert tokenizer.decode(ids) == text


def test_smollm_splits_each_digit_before_the_spaces():
    tokenizer, vocabulary = tokenizer_of("smollm")
    assert [vocabulary[i] for i in tokenizer.encode(program("a  1"))] == ["a", "ĠĠ", "1"]
    tokenizer, vocabulary = tokenizer_of("gpt-2")
    assert [vocabulary[i] for i in tokenizer.encode(program("a  1"))] == ["a", "Ġ", "Ġ1"]


def test_a_token_that_no_merge_makes_is_used_by_llama_3_only():
    tokenizer, _ = tokenizer_of("llama-bpe")
    assert len(tokenizer.encode(program("sss"))) == 1
    tokenizer, _ = tokenizer_of("qwen2")
    assert len(tokenizer.encode(program("sss"))) == 3


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("ggml__model", "llama", "tokenizer.ggml.model is 'llama'"),
        ("ggml__model", None, "tokenizer.ggml.model is None"),
        ("ggml__pre", "tekken", "tokenizer.ggml.pre is 'tekken'"),
        ("ggml__pre", None, "tokenizer.ggml.pre is None"),
        ("ggml__tokens", None, "no tokenizer.ggml.tokens"),
        ("ggml__merges", [], "no tokenizer.ggml.merges"),
        ("ggml__merges", ["zz qq"], "cannot be built"),
        ("ggml__merges", ["Ġt"], "not a merge"),
        ("ggml__token_type", [1], "1 token types"),
        ("ggml__eos_token_id", 1 << 30, "tokenizer.ggml.eos_token_id is 1073741824"),
        ("ggml__add_bos_token", True, "no tokenizer.ggml.bos_token_id"),
        ("chat_template", "{% if %}", "chat template"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(field, value, says):
    with pytest.raises(ModelError, match=says):
        make(**{field: value})


def test_every_end_that_the_file_names_stops():
    tokenizer = make(ggml__eos_token_id=3, ggml__eot_token_id=4, ggml__eom_token_id=5)
    assert tokenizer.stop_token_ids == {3, 4, 5}
    assert make().stop_token_ids == frozenset()


def test_bos_is_added_where_the_file_or_its_kind_says_so():
    assert not make(ggml__bos_token_id=7).adds_bos
    assert make(ggml__bos_token_id=7, ggml__add_bos_token=True).encode(program("a"))[0] == 7
    llama = make(ggml__pre="llama-bpe", ggml__bos_token_id=7)
    assert llama.encode(program("a"))[0] == 7
    without = make(ggml__pre="llama-bpe", ggml__bos_token_id=7, ggml__add_bos_token=False)
    assert without.encode(program("a"))[0] != 7


def test_unused_tokens_count_in_the_vocabulary_but_are_not_text():
    tokenizer = make(unused=("[PAD1]", "[PAD2]"))
    assert tokenizer.decode([tokenizer.vocab_size - 1]) == ""
    assert len(tokenizer.encode(program("[PAD1]"))) == len("[PAD1]")
