"""A generation's ids as text: characters, stop strings, stop ids, and what a state keeps."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from branchline.runtime.text import TextStream, Tokenizer
from branchline.sampling_params import SamplingParams

from .small import gguf_fields, spell

WORDS = ("DEFGHIJ", "xDEFGHIJy", "DEFX", "xDEFX", ".\n\n", "Hello", " ", "END", "one")
SUBSTRINGS = tuple({w[i:j] for w in WORDS for i in range(len(w)) for j in range(i + 1, len(w) + 1)})
FIELDS = gguf_fields(
    extra=SUBSTRINGS,
    # Merges inside characters and across them.
    merges=("ä ¸", "ä¸ ĸ", "ð Ł", "â Ģ", "ĸ a", "a b", "é Ļ", "Ì ģ", "į ð"),
)
TOKENIZER = Tokenizer.from_gguf(FIELDS)
IDS = {token: i for i, token in enumerate(FIELDS["tokenizer.ggml.tokens"])}
SPECIAL = IDS["<|end|>"]
HALF = "\ufffd"


def ids_of(*tokens):
    """The ids of texts, or bytes, that are tokens as they are."""
    return [IDS[spell(token)] for token in tokens]


def by_bytes(text):
    """One id for each byte of a text."""
    return ids_of(*(bytes([byte]) for byte in text.encode()))


def by_longest(text):
    """A text as the longest tokens there are, from the left."""
    ids, word = [], spell(text)
    while word:
        size = next(size for size in range(len(word), 0, -1) if word[:size] in IDS)
        ids.append(IDS[word[:size]])
        word = word[size:]
    return ids


def run(ids, *, prompt=(), stop_ids=frozenset(), **params):
    """All of a generation: the stream, and what each call returned."""
    stream = TextStream(TOKENIZER, list(prompt), SamplingParams(**params), frozenset(stop_ids))
    parts = []
    for token in ids:
        parts.append(stream.push(token))
        assert stream.text == "".join(parts)
        if stream.matched is not None:
            break
    parts.append(stream.finish())
    assert stream.text == "".join(parts)
    return stream, parts


def ways_to_split(text):
    """Every way to cut a text into tokens."""
    if not text:
        yield []
    for end in range(1, len(text) + 1):
        for rest in ways_to_split(text[end:]):
            yield [text[:end], *rest]


# ---------------------------------------------------------------------------- stop strings


@pytest.mark.parametrize("trim", [True, False])
def test_a_stop_is_never_shown_however_it_arrives(trim):
    for tokens in ways_to_split("xDEFGHIJy"):
        stream, parts = run(ids_of(*tokens), stop=("DEFGHIJ",), no_stop_trim=not trim)
        assert stream.text == ("x" if trim else "xDEFGHIJ")
        assert stream.matched == "DEFGHIJ"
        assert not trim or all("D" not in part for part in parts)
        cut = len(stream.text)
        whole = [n for n in range(len(tokens) + 1) if len("".join(tokens[:n])) <= cut]
        assert stream.kept == whole[-1]
        assert stream.tail == stream.text[len("".join(tokens[: whole[-1]])) :]


def test_a_false_alarm_is_released():
    for tokens in ways_to_split("xDEFX"):
        stream, parts = run(ids_of(*tokens), stop=("DEFGHIJ",))
        assert stream.text == "xDEFX"
        assert parts[-1] == ""  # released when the match failed, not only at the end
        assert (stream.matched, stream.kept, stream.tail) == (None, len(tokens), "")


def test_what_was_held_comes_out_at_the_end():
    stream, parts = run(ids_of("x", "DE", "F"), stop=("DEFGHIJ",), max_tokens=3)
    assert parts == ["x", "", "", "DEF"]
    assert (stream.matched, stream.kept, stream.tail) == (None, 3, "")


def test_a_stop_at_the_first_token():
    stream, parts = run(ids_of("DEFGHIJ", "x"), stop=("DEF",))
    assert (parts, stream.kept, stream.tail) == (["", ""], 0, "")


def test_of_overlapping_stops_the_earliest_wins():
    for tokens in ways_to_split("xDEFGHIJy"):
        stream, _ = run(ids_of(*tokens), stop=("FGH", "DEF", "EFG"))
        assert (stream.text, stream.matched) == ("x", "DEF")
        stream, _ = run(ids_of(*tokens), stop=("FG", "DEFG", "GHI"))  # two end together
        assert (stream.text, stream.matched) == ("x", "DEFG")


def test_a_stop_that_the_last_allowed_token_completes_is_a_stop():
    stream, _ = run(ids_of("x", "DE", "F"), stop=("DEF",), max_tokens=3)
    assert (stream.text, stream.matched, stream.kept) == ("x", "DEF", 1)


def test_a_stop_inside_a_token_leaves_the_rest_as_text():
    stream, _ = run(ids_of("Hello", ".\n\n"), stop=("\n",))
    assert (stream.text, stream.kept, stream.tail) == ("Hello.", 1, ".")
    hello = ids_of("Hello")
    state = (("tokens", tuple(hello)), ("program", stream.tail), ("program", "!"))
    assert TOKENIZER.encode(state) == [*hello, *ids_of(".", "!")]
    stream, _ = run(ids_of("Hello", ".\n\n"), stop=("\n",), no_stop_trim=True)
    assert (stream.text, stream.kept, stream.tail) == ("Hello.\n", 1, ".\n")


def test_stops_are_not_looked_for_before_min_tokens_are_out():
    ids = ids_of("END", "x", "EN", "D", "x", "END")
    stream, parts = run(ids, stop=("END",), min_tokens=5)
    assert (stream.text, stream.kept) == ("ENDxENDx", 5)
    assert parts[:4] == ["END", "x", "EN", "D"]  # nothing is held that cannot stop
    stream, _ = run(ids, stop=("END",), min_tokens=4)  # what was shown before is no part of a match
    assert stream.text == "ENDxENDx"
    stream, _ = run(ids, stop=("END",), min_tokens=3)
    assert stream.text == "ENDx"


def test_a_cut_in_text_that_came_with_a_character_keeps_only_whole_characters():
    ids = ids_of(b"\xe4", b"\xb8", b"\x96a")
    stream, _ = run(ids, stop=("a",))
    assert (stream.text, stream.kept, stream.tail) == ("世", 0, "世")
    ids = [*ids_of("x"), SPECIAL, *ids_of("Hello")]
    stream, _ = run(ids, stop=("llo",))
    assert (stream.text, stream.kept, stream.tail) == ("xHe", 2, "He")


# ---------------------------------------------------------------------------- stop ids


@pytest.mark.parametrize(
    ("skip", "no_trim", "text", "tail"),
    [
        (True, False, "Hello", ""),
        (True, True, "Hello", ""),  # the id has no visible text to keep
        (False, False, "Hello", ""),
        (False, True, "Hello<|end|>", "<|end|>"),
    ],
)
def test_a_special_stop_id_trims_its_own_text_only(skip, no_trim, text, tail):
    stream, _ = run(
        [*ids_of("Hel", "lo"), SPECIAL],
        stop_ids={SPECIAL},
        skip_special_tokens=skip,
        no_stop_trim=no_trim,
    )
    assert (stream.text, stream.matched) == (text, SPECIAL)
    assert (stream.kept, stream.tail) == (2, tail)


@pytest.mark.parametrize("no_trim", [False, True])
def test_an_ordinary_stop_id(no_trim):
    ids = ids_of("Hel", "lo", "END")
    stream, _ = run(ids, stop_ids={ids[2]}, no_stop_trim=no_trim)
    assert stream.text == ("HelloEND" if no_trim else "Hello")
    assert (stream.matched, stream.kept, stream.tail) == (ids[2], 2, "END" if no_trim else "")


def test_a_stop_id_releases_what_was_held_and_completes_no_stop_string():
    ids = ids_of("x", "EN", "D")
    stream, parts = run(ids, stop=("END",), stop_ids={ids[2]})
    assert parts == ["x", "", "", "EN"]
    assert (stream.matched, stream.kept, stream.tail) == (ids[2], 2, "")


def test_a_stop_id_inside_a_character():
    half = by_bytes("世")[:2]
    stream, _ = run([*half, SPECIAL], stop_ids={SPECIAL})
    assert (stream.text, stream.kept, stream.tail) == (HALF, 2, "")


# ---------------------------------------------------------------------------- characters


alphabet = "a é世界語한가🙂🇩🇪👩\u200d💻e\u0301\u0327\ufe0f!"
script = st.text(st.sampled_from(alphabet), max_size=20)
some_bytes = st.integers(0, 255) | st.sampled_from("世🙂a".encode())
BYTE = [IDS[spell(bytes([byte]))] for byte in range(256)]


@given(script, st.sampled_from(["", "x", "世"]))
@settings(deadline=None)
def test_whole_characters_come_as_soon_as_they_are_complete(text, prompt):
    prompt_ids = by_bytes(prompt)
    for ids in (by_bytes(text), by_longest(text)):
        stream, parts = run(ids, prompt=prompt_ids)
        assert stream.text == text == TOKENIZER.decode(ids)
        assert all(HALF not in part for part in parts)
        assert parts[-1] == ""
        assert (stream.kept, stream.tail) == (len(ids), "")


@given(st.lists(some_bytes, max_size=12), st.lists(some_bytes, max_size=8))
@settings(deadline=None, max_examples=300)
def test_bytes_that_are_no_text_decode_as_a_whole(data, prompt):
    stream, _ = run([BYTE[byte] for byte in data], prompt=[BYTE[byte] for byte in prompt])
    if not bytes(prompt).decode(errors="replace").endswith(HALF):
        assert stream.text == bytes(data).decode(errors="replace")


@given(script, st.lists(st.text(st.sampled_from(alphabet), min_size=1, max_size=3), max_size=3))
@settings(deadline=None, max_examples=300)
def test_kept_ids_and_tail_make_up_the_text(text, stops):
    ids = by_longest(text)
    for no_trim in (False, True):
        stream, _ = run(ids, stop=tuple(stops), no_stop_trim=no_trim)
        assert TOKENIZER.decode(ids[: stream.kept]) + stream.tail == stream.text
        assert text.startswith(stream.text)
        assert (stream.matched is None) == (not any(stop in text for stop in stops))
        decoded = [TOKENIZER.decode(ids[:count]) for count in range(len(ids) + 1)]
        assert stream.kept == max(i for i, d in enumerate(decoded) if stream.text.startswith(d))


def test_a_character_is_not_sent_twice():
    for text in ("A 世ab", "世世", "e\u0301e\u0301"):
        stream, _ = run(by_bytes(text), prompt=by_bytes("x"))
        assert stream.text == text


def test_half_a_character_at_the_end_is_sent_and_its_ids_are_kept():
    ids = by_bytes("a世")[:-1]
    stream, parts = run(ids, max_tokens=3)
    assert parts == ["a", "", "", HALF]
    assert (stream.matched, stream.kept, stream.tail) == (None, 3, "")


def test_a_stop_that_only_the_last_bytes_complete():
    stream, _ = run(by_bytes("a世")[:-1], stop=(HALF,))
    assert (stream.text, stream.matched, stream.kept) == ("a", HALF, 1)


def test_a_prompt_that_ends_inside_a_character_is_not_sent_again():
    ids = by_bytes("ab世")
    stream, _ = run(ids[-1:] + by_bytes("c"), prompt=ids[:-1])
    assert stream.text == HALF + "c"


def test_ids_that_the_tokenizer_does_not_know_have_no_text():
    stream, _ = run([*ids_of("x"), TOKENIZER.vocab_size + 5, *ids_of("D")])
    assert (stream.text, stream.kept) == ("xD", 3)
