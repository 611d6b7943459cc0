"""`bl.Mock`: what it is told to say is what a program reads, and ends as a model's text would."""

from __future__ import annotations

import asyncio
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

import branchline as bl
from branchline import eventloop
from branchline.mock_tokens import PrefixCache, Vocabulary
from branchline.protocol import Generate


def ask(mock: bl.Mock, prompt: str = "Q:", **settings):
    """One gen after a prompt: the state."""

    def body(s):
        s += prompt + bl.gen("x", **settings)

    return bl.function(body).run(backend=mock)


def choose(mock: bl.Mock, prompt: str = "Q:", choices=("yes", "no", "perhaps"), **settings):
    def body(s):
        s += prompt + bl.select("x", list(choices), **settings)

    return bl.function(body).run(backend=mock)


# ---------------------------------------------------------------------------- what it says


def test_always_the_same() -> None:
    mock = bl.Mock("yes")
    assert [ask(mock)["x"] for _ in range(3)] == ["yes"] * 3


def test_a_list_answers_one_request_after_the_other() -> None:
    mock = bl.Mock(["one", "two"])
    assert [ask(mock)["x"], ask(mock)["x"]] == ["one", "two"]
    with pytest.raises(bl.ProgramError, match=r"no more answers: all 2 have been given"):
        ask(mock, "third?")["x"]


def test_a_list_with_a_default() -> None:
    mock = bl.Mock(["one"], default="more")
    assert [ask(mock)["x"] for _ in range(3)] == ["one", "more", "more"]


def test_the_pattern_that_is_found_furthest_along_answers() -> None:
    mock = bl.Mock({"capital of France": "Paris", "capital of Italy": "Rome", r"\?": "what"})
    assert ask(mock, "The capital of France is")["x"] == "Paris"
    both = "The capital of Italy is Rome, and the capital of France is"
    assert ask(mock, both)["x"] == "Paris"
    assert ask(mock, "the capital of France? Really?")["x"] == "what"


def test_a_pattern_with_a_list_and_a_default() -> None:
    mock = bl.Mock({"again": ["one", "two"]}, default="else")
    prompts = ["again", "no", "again", "again"]
    assert [ask(mock, prompt)["x"] for prompt in prompts] == ["one", "else", "two", "else"]


def test_a_prompt_that_no_pattern_fits_says_so() -> None:
    with pytest.raises(bl.ProgramError, match=r"none of the mock's answers fits the prompt 'Q:'"):
        ask(bl.Mock({"never": "x"}))["x"]


def test_a_function_gets_the_text_of_the_prompt() -> None:
    state = ask(bl.Mock(lambda prompt: prompt.upper()), "abc ")
    assert state["x"] == "ABC "


def test_an_exception_is_raised_where_it_is_read() -> None:
    mock = bl.Mock([ConnectionError("gone"), "back"])
    with pytest.raises(bl.ProgramError) as caught:
        ask(mock)["x"]
    assert isinstance(caught.value.__cause__, ConnectionError)
    assert ask(mock)["x"] == "back"


def test_each_of_n_choices_takes_an_answer() -> None:
    state = ask(bl.Mock(["a", "b", "c"]), n=3)
    assert state["x"] == ["a", "b", "c"]
    assert state.text() == "Q:a"


def test_computing_a_prompt_takes_no_answer() -> None:
    mock = bl.Mock(["only"])
    state = ask(mock, max_tokens=0, top_logprobs_num=3)
    assert state["x"] == ""
    (top,) = state.get_meta_info("x")["output_top_logprobs"]
    assert len({token for _, token, _ in top}) == 3
    assert ask(mock)["x"] == "only"


# ---------------------------------------------------------------------------- how an answer ends


@pytest.mark.parametrize(
    ("said", "settings", "text", "reason"),
    [
        ("one two three", {}, "one two three", {"type": "stop", "matched": 0}),
        ("one two three", {"max_tokens": 2}, "one two", {"type": "length", "length": 2}),
        ("one two three", {"max_tokens": 3}, "one two three", {"type": "length", "length": 3}),
        ("one two three", {"stop": " three"}, "one two", {"type": "stop", "matched": " three"}),
        ("one two three", {"stop": "o th"}, "one tw", {"type": "stop", "matched": "o th"}),
        ("one two three", {"stop": ["two", "w"]}, "one t", {"type": "stop", "matched": "w"}),
        ("a b a b", {"stop": "b", "min_tokens": 3}, "a b a ", {"type": "stop", "matched": "b"}),
        ("", {}, "", {"type": "stop", "matched": 0}),
    ],
)
def test_ends(said, settings, text, reason) -> None:
    state = ask(bl.Mock(said), **settings)
    assert state["x"] == text
    assert state.get_meta_info("x")["finish_reason"] == reason
    assert state.text() == "Q:" + text


def first_stop(text: str, stops: list[str]) -> str:
    """The text before the stop that is complete first, by trying every length."""
    for length in range(len(text) + 1):
        complete = [stop for stop in stops if text[:length].endswith(stop)]
        if complete:
            return text[: length - max(map(len, complete))]
    return text


@given(st.text("ab .", max_size=20), st.lists(st.text("ab .", min_size=1), max_size=3))
def test_stops_cut_where_brute_force_does(said, stops) -> None:
    mock = bl.Mock(said)
    state = ask(mock, stop=stops, max_tokens=100)
    assert state["x"] == first_stop(said, stops)

    def more(s):
        s += "Q:" + bl.gen("x", stop=stops, max_tokens=100) + "|" + bl.gen("y", max_tokens=1)

    bl.function(more).run(backend=mock).sync()
    assert mock.prompts[-1] == "Q:" + first_stop(said, stops) + "|"


def test_log_probabilities() -> None:
    state = ask(bl.Mock(bl.Reply("a b", logprob=-2.0)), "P Q:", top_logprobs_num=2)
    meta = state.get_meta_info("x")
    assert [logprob for logprob, _, _ in meta["output_token_logprobs"]] == [-2.0] * 3  # and the end
    assert [len(top) for top in meta["output_top_logprobs"]] == [2, 2, 2]
    tokens = [token for _, token, _ in meta["output_token_logprobs"]]
    assert [top[0][1] for top in meta["output_top_logprobs"]] == tokens
    meta = ask(bl.Mock("a"), "P Q:", logprob_start_len=0, return_logprob=True).get_meta_info("x")
    assert [logprob for logprob, _, _ in meta["input_token_logprobs"]] == [None, -1.0, -1.0]


# ---------------------------------------------------------------------------- how it comes


def test_it_streams_token_by_token_or_in_pieces_of_its_own() -> None:
    def body(s):
        s += "Q:" + bl.gen("x", stop="!")

    def pieces(answer):
        state = bl.function(body).run(backend=bl.Mock(answer), stream=True)
        return list(state.text_iter("x"))

    assert pieces("one two, three! four") == ["one", " two", ",", " three"]
    assert pieces(bl.Reply(["one two", ", thr", "ee! four"])) == ["one two", ", thr", "ee"]


def test_it_can_fail_midway() -> None:
    def body(s):
        s += "Q:" + bl.gen("x")

    mock = bl.Mock(bl.Reply("one two", error=OSError("cut off")))
    chunks = bl.function(body).run(backend=mock, stream=True).text_iter("x")
    assert [next(chunks), next(chunks)] == ["one", " two"]
    with pytest.raises(bl.ProgramError, match="cut off"):
        next(chunks)
    with pytest.raises(bl.ProgramError, match="cut off"):
        ask(mock)["x"]


def test_delays_let_others_pass() -> None:
    mock = bl.Mock({"slow": bl.Reply("s", delay=0.2), "fast": "f"})
    order = []

    def body(s):
        s += "ask "
        branches = s.fork(2)
        branches[0] += "slow" + bl.gen("x")
        branches[1] += "fast" + bl.gen("x")
        order.append(branches[1]["x"])
        assert "x" not in branches[0]
        order.append(branches[0]["x"])

    bl.function(body).run(backend=mock)
    assert order == ["f", "s"]


def test_requests_wait_until_they_are_released() -> None:
    mock = bl.Mock("ok", hold=True)
    states = [ask(mock) for _ in range(3)]
    mock.wait_for_requests(3)
    assert mock.alive == mock.most_alive == 3
    assert "x" not in states[0]
    mock.release()
    assert [state["x"] for state in states] == ["ok"] * 3
    assert mock.alive == 0
    with pytest.raises(TimeoutError, match=r"3 of 4 requests"):
        mock.wait_for_requests(4, timeout=0.01)


def test_giving_up_is_recorded() -> None:
    mock = bl.Mock("one two three")

    async def leave() -> str:
        request = Generate(mock.new_rid(), (("program", "Q:"),))
        answers = mock.generate(request)
        async for _ in answers:
            break
        await answers.aclose()
        return request.rid

    assert mock.aborted == [eventloop.run(leave())]
    assert ask(mock)["x"] == "one two three"
    assert len(mock.aborted) == 1

    async def cancel() -> None:
        held = bl.Mock("x", hold=True)
        task = asyncio.ensure_future(
            anext(held.generate(Generate("r", (("program", "Q:"),))))  # type: ignore[arg-type]
        )
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert (held.aborted, held.alive) == (["r"], 0)

    eventloop.run(cancel())


# ---------------------------------------------------------------------------- select


@pytest.mark.parametrize(
    "method",
    [
        bl.token_length_normalized,
        bl.greedy_token_selection,
        bl.unconditional_likelihood_normalized,
    ],
)
def test_a_pick_is_taken_by_every_method(method) -> None:
    choices = ("yes", "no", "perhaps, or not")
    mock = bl.Mock(select=["no", "perhaps, or not", "yes"])
    taken = [choose(mock, choices=choices, choices_method=method)["x"] for _ in range(3)]
    assert taken == ["no", "perhaps, or not", "yes"]


def test_without_a_script_the_first_choice_is_taken() -> None:
    assert choose(bl.Mock())["x"] == "yes"


def test_picks_by_pattern_and_by_function() -> None:
    assert choose(bl.Mock(select={"Q": "no"}))["x"] == "no"
    assert choose(bl.Mock(select=lambda _: {"perhaps": -1.0}))["x"] == "perhaps"


def test_likelihoods_are_what_the_methods_see() -> None:
    mock = bl.Mock(likelihoods={"yes": -2.0, "no": [-0.5, -0.25], "perhaps": -1.0})
    state = choose(mock)
    assert state["x"] == "no"
    assert state.get_meta_info("x")["normalized_prompt_logprobs"] == [-2.0, -0.375, -1.0]


def test_a_pick_that_is_no_choice_is_refused() -> None:
    with pytest.raises(bl.ProgramError, match="'never', which is not among the choices"):
        choose(bl.Mock(select="never"))["x"]
    with pytest.raises(bl.ProgramError, match="busy"):
        choose(bl.Mock(select=ConnectionError("busy")))["x"]


# ---------------------------------------------------------------------------- what it counts


def test_what_came_before_counts_as_cached() -> None:
    mock = bl.Mock("one two")

    def body(s):
        s += "a b c" + bl.gen("x")
        s += " d" + bl.gen("y")

    state = bl.function(body).run(backend=mock)
    first, second = state.get_meta_info("x"), state.get_meta_info("y")
    assert (first["prompt_tokens"], first["cached_tokens"], first["completion_tokens"]) == (3, 0, 3)
    assert (second["prompt_tokens"], second["cached_tokens"]) == (6, 5)
    eventloop.run(mock.flush())
    assert ask(mock, "a b c").get_meta_info("x")["cached_tokens"] == 0
    info = eventloop.run(mock.info())
    assert (info.prompt_tokens, info.cached_prompt_tokens, info.generated_tokens) == (12, 5, 9)


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), max_size=8))
def test_the_cache_finds_the_longest_common_start(sequences) -> None:
    cache = PrefixCache()
    for number, ids in enumerate(sequences):
        common = [
            next((at for at in range(len(ids)) if at == len(old) or ids[at] != old[at]), len(ids))
            for old in sequences[:number]
        ]
        assert cache.match(ids) == min(max(common, default=0), len(ids) - 1)
        cache.add(ids)
    assert cache.tokens == len({tuple(ids[: i + 1]) for ids in sequences for i in range(len(ids))})


@given(st.text())
def test_tokens_joined_are_the_text(text) -> None:
    words = Vocabulary()
    ids = words.encode(text)
    assert words.text(ids) == text
    assert len(ids) == len(re.findall(r"\w+|[^\w\s]|\s+\Z", text))


def test_an_empty_or_too_long_prompt_is_refused() -> None:
    with pytest.raises(bl.ProgramError, match="the prompt is empty"):
        ask(bl.Mock("x"), "")["x"]
    with pytest.raises(bl.ProgramError, match="5 tokens: the context is 5"):
        ask(bl.Mock("x", context_length=5), "a b c d e")["x"]


def test_it_answers_scripts_without_a_program() -> None:
    (completion,) = bl.Mock("fine").generate_text("How are you?")
    assert completion.text == "fine"


def test_a_program_asks_once_for_each_hole() -> None:
    """No request warms a cache up: not for a prefix, a fork, or the choices of a select."""

    @bl.function
    def few_shot(s, question):
        s += "Q: 1 + 1?\nA: 2\n\n" * 8
        s += f"Q: {question}\nA:" + bl.gen("answer", max_tokens=4)

    @bl.function
    def picks(s):
        s += "A day of the week:" + bl.select("day", ["Monday", "Friday", "June"])

    @bl.function
    def forks(s):
        s += "Write a tip.\n" * 20
        branches = s.fork(5)
        branches += bl.gen("tip", max_tokens=4)
        branches.join()

    for program, items, wanted in (
        (few_shot, [("2 + 2?",)], 1),
        (few_shot, [(f"{i} + 1?",) for i in range(7)], 7),
        (picks, [()], 1),
        (forks, [()], 5),
    ):
        backend = bl.Mock("four")
        states = program.run_batch(items, backend=backend)
        assert [state.error() for state in states] == [None] * len(items)
        assert len(backend.requests) == wanted
