# ruff: noqa: PLW2901 - a loop over branches appends to them with +=

from __future__ import annotations

import pytest

import branchline as bl
from branchline.errors import InvalidRequest
from branchline.protocol import ChoiceScore
from branchline.sampling_params import SamplingParams
from branchline.snapshot import added, joined

from .fake_backend import FakeBackend


def run(body, backend=None, **settings):
    backend = backend or FakeBackend()

    @bl.function
    def program(s):
        return body(s)

    return program.run(backend=backend, **settings), backend


def test_text_and_variables() -> None:
    def body(s):
        s += "Q: 1+1\nA:" + bl.gen("answer", stop="\n") + "\n"
        s += "said " + s["answer"]
        return "returned"

    state, backend = run(body, FakeBackend(" 2\nQ:"))
    assert state.text() == "Q: 1+1\nA: 2\nsaid  2"
    assert repr(state) == "ProgramState(Q: 1+1\nA: 2\nsaid  2)"
    assert state["answer"] == state.get_var("answer") == " 2"
    assert state.ret_value == "returned"
    assert state.error() is None
    assert backend.prompts == ["Q: 1+1\nA:"]


def test_generated_ids_go_back_as_ids_and_neighbouring_text_is_one_piece() -> None:
    def body(s):
        s += "a"
        s += ""
        s += "b" + bl.gen("x", stop=".") + "c"
        s += "d"
        s += bl.gen("y")

    _state, backend = run(body, FakeBackend(lambda text: "xyz.tail" if text == "ab" else "!"))
    _state.sync()
    # The stop cuts inside a token: z is kept as text, and joins what follows.
    assert backend.requests[1].prompt == (
        ("program", "ab"),
        ("tokens", (ord("x"), ord("y"))),
        ("program", "zcd"),
    )
    assert _state.text() == "abxyzcd!"


def test_pieces_merge_and_part_again() -> None:
    head = (("template", "a"), ("program", "b"))
    tail = (("program", "c"), ("tokens", (1,)), ("tokens", (2,)), ("program", ""))
    whole = joined(head, tail)
    assert whole == (("template", "a"), ("program", "bc"), ("tokens", (1, 2)))
    assert added(whole, head) == (("program", "c"), ("tokens", (1, 2)))
    assert added(head, head) == ()
    assert added(head, ()) == head


def test_constant_text_asks_nothing() -> None:
    def body(s):
        s += "only text"
        with s.user():
            s += "more"
        s.fork(3)

    state, backend = run(body)
    state.text()
    assert backend.requests == []


def test_a_program_does_not_wait_for_what_it_does_not_read(soon) -> None:
    backend = FakeBackend("late", gated=True)

    def body(s):
        s += "a" + bl.gen("x")
        s += "b"
        return "x" in s

    state, _ = soon(lambda: run(body, backend))
    assert state.ret_value is False
    backend.open_gate()
    assert soon(state.text) == "alateb"
    assert "x" in state
    assert "y" not in state


def test_variables_are_set_and_missing_ones_are_named() -> None:
    def body(s):
        s["given"] = [1]
        s.set_var("other", 2)
        assert s["given"] == [1]
        s += "t" + bl.gen("x")
        s["x"] = "set later wins"

    state, _ = run(body)
    assert (state["x"], state["other"]) == ("set later wins", 2)
    assert state.text() == "tok"
    with pytest.raises(KeyError, match="'nope': this state has no such variable; it has: given"):
        state["nope"]
    assert state.get_meta_info("nope") is None
    assert state.get_meta_info("given") is None


def test_unnamed_gens_are_only_text() -> None:
    def body(s):
        s += bl.gen() + "," + bl.gen(None)

    state, _ = run(body)
    assert state.text() == "ok,ok"
    assert None not in state


def test_var_scope_takes_the_text_inside() -> None:
    def body(s):
        s += "a"
        with s.var_scope("outer"):
            s += "b"
            with s.var_scope("inner"):
                s += bl.gen("x")
            s += "c"
        s += "d"

    state, _ = run(body)
    assert (state["outer"], state["inner"]) == ("bokc", "ok")


@pytest.mark.parametrize("wrong", [None, 5, ["a"], object()])
def test_only_text_and_expressions_can_be_appended(wrong) -> None:
    def body(s):
        s += wrong

    with pytest.raises(ValueError, match="appends text or an expression"):
        run(body)


def test_expressions_add_up_in_order() -> None:
    expr = "a" + bl.gen("x") + "b" + bl.user("c")
    assert [type(leaf).__name__ for leaf in expr.leaves()] == [
        "Text", "Gen", "Text", "RoleBegin", "Text", "RoleEnd",
    ]  # fmt: skip


# ------------------------------------------------------------------------------- parameters


def test_positional_order_is_name_max_min_n_stop_stop_ids() -> None:
    node = bl.gen("x", 64, 2, 3, "\n", [5])
    assert (node.name, dict(node.changes)) == (
        "x",
        {"max_tokens": 64, "min_tokens": 2, "n": 3, "stop": ("\n",), "stop_token_ids": (5,)},
    )


def test_defaults_are_the_runs_and_a_gen_changes_them() -> None:
    def body(s):
        s += bl.gen(temperature=0, stop=["a", "b"], logit_bias={3: 1.5}, top_logprobs_num=2)
        s += bl.gen(seed=9, logprob_start_len=-1, return_logprob=False, ignore_eos=True)
        s += bl.gen()

    state, backend = run(
        body, max_new_tokens=7, stop="X", top_p=0.5, return_logprob=True, logprob_start_len=0
    )
    state.sync()
    common = {"max_tokens": 7, "top_p": 0.5}
    assert [request.params for request in backend.requests] == [
        SamplingParams(
            **common,
            stop=("a", "b"),
            temperature=0,
            logit_bias={3: 1.5},
            top_logprobs=2,
            logprobs=True,
            logprob_start=0,
        ),
        SamplingParams(**common, stop=("X",), seed=9, ignore_eos=True),
        SamplingParams(**common, stop=("X",), logprobs=True, logprob_start=0),
    ]


def test_defaults_without_settings() -> None:
    state, backend = run(lambda s: s.__iadd__(bl.gen()))
    state.sync()
    assert backend.requests[0].params == SamplingParams(max_tokens=128, temperature=1.0)


@pytest.mark.parametrize("name", ["dtype", "stop_regex", "nonsense"])
def test_what_is_not_built_is_no_parameter(name) -> None:
    with pytest.raises(TypeError, match=name):
        bl.gen("x", **{name: 1})
    with pytest.raises(TypeError, match=name):
        run(lambda s: s.text(), **{name: 1})


def test_a_bad_parameter_is_refused_where_it_is_appended(soon) -> None:
    def body(s):
        with pytest.raises(InvalidRequest, match="temperature=-1"):
            s += bl.gen("good") + bl.gen("bad", temperature=-1)
        with pytest.raises(InvalidRequest, match="min_tokens=200 is more than max_tokens=128"):
            s += bl.gen("bad", min_tokens=200)
        s += "fine"

    state, backend = run(body)
    assert soon(state.text) == "fine"
    with pytest.raises(KeyError):
        soon(lambda: state["good"])
    assert backend.requests == []
    with pytest.raises(InvalidRequest, match="top_p=2"):
        run(body, top_p=2.0)


def test_n_makes_a_list_and_goes_on_from_the_first() -> None:
    def body(s):
        s += "t" + bl.gen("x", n=3) + "." + bl.gen("y")

    state, backend = run(body)
    assert state["x"] == ["ok", "ok1", "ok2"]
    assert [meta["completion_tokens"] for meta in state.get_meta_info("x")] == [2, 3, 3]
    assert state.text() == "tok.ok"
    assert backend.prompts[1] == "tok."


# ------------------------------------------------------------------------------- meta info


def test_meta_info_of_a_gen() -> None:
    def body(s):
        s += "ab" + bl.gen("x", stop="!", top_logprobs_num=1, seed=4)
        s += bl.gen("y", max_tokens=1)

    state, _ = run(body, FakeBackend("c!"))
    assert state.get_meta_info("x") == {
        "id": "rid-0",
        "prompt_tokens": 2,
        "completion_tokens": 2,
        "cached_tokens": 1,
        "finish_reason": {"type": "stop", "matched": "!"},
        "seed": 4,
        "output_token_logprobs": [[-0.5, ord("c"), None], [-0.5, ord("!"), None]],
        "output_top_logprobs": [[[-0.5, ord("c"), None]], [[-0.5, ord("!"), None]]],
    }
    assert state.get_meta_info("y")["finish_reason"] == {"type": "length", "length": 1}
    assert "output_token_logprobs" not in state.get_meta_info("y")


def test_no_tokens_asks_for_the_next_position() -> None:
    def body(s):
        s += "a" + bl.gen("x", max_tokens=0, top_logprobs_num=2)

    state, _ = run(body)
    assert state["x"] == ""
    assert state.text() == "a"
    assert state.get_meta_info("x")["output_top_logprobs"] == [
        [[-0.25, 65, None], [-1.5, 66, None]]
    ]


# ------------------------------------------------------------------------------- select

SCORES = {
    "yes": ChoiceScore((1,), (-1.0,), (None,)),
    "no": ChoiceScore((2, 3), (-0.5, -0.75), (None, -0.75)),
}


@pytest.mark.parametrize(
    "node",
    [
        bl.select("x", ["yes", "no"]),
        bl.select("x", choices=("yes", "no"), temperature=0.0),
        bl.gen("x", choices=["yes", "no"], max_tokens=7),
    ],
)
def test_select_is_one_score(node) -> None:
    def body(s):
        s += "q:" + node + "." + bl.gen("y")

    state, backend = run(body, FakeBackend(scores=SCORES))
    assert state["x"] == "no"
    assert state.text() == "q:no.ok"
    score, gen = backend.requests
    assert (score.choices, score.unconditional) == (("yes", "no"), False)
    assert gen.prompt == (("program", "q:no."),)
    meta = state.get_meta_info("x")
    assert meta["normalized_prompt_logprobs"] == [-1.0, -0.625]
    assert meta["prompt_tokens"] == 2


def test_select_asks_for_scores_without_the_prompt_where_the_method_needs_them() -> None:
    def body(s):
        s += "q" + bl.select("x", ["yes", "no"], 0.0, bl.unconditional_likelihood_normalized)

    state, backend = run(body, FakeBackend(scores=SCORES))
    assert state["x"] == "no"  # means of (-1.0) and of (-0.5, 0.0)
    assert backend.requests[0].unconditional is True


def test_empty_choices_make_a_gen() -> None:
    assert type(bl.gen("x", choices=[])).__name__ == "Gen"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "at least one"),
        ({"choices": []}, "at least one"),
        ({"choices": "abc"}, "at least one"),
        ({"choices": ["a", 1]}, "every choice must be text"),
        ({"choices": ["a"], "temperature": -0.7}, "must be at least 0"),
        ({"choices": ["a"], "choices_method": "best"}, "token, greedy, unconditional, sum, byte"),
        ({"choices": ["a"], "calibration": ""}, "must be some text"),
    ],
)
def test_a_wrong_select_is_refused_where_it_is_written(arguments, message) -> None:
    with pytest.raises(InvalidRequest, match=message):
        bl.select("x", **arguments)


# ------------------------------------------------------------------------------- seeds


def test_a_run_with_a_seed_repeats_and_every_gen_differs() -> None:
    def body(s):
        s += bl.gen() + bl.gen()
        first = s.fork(2)
        second = s.fork(2)
        for forks in (first, second):
            forks += bl.gen()
            forks.join()
        nested = first[0].fork(1)
        nested += bl.gen() + bl.gen(seed=5)
        nested.join()

    def seeds(seed):
        state, backend = run(body, seed=seed)
        state.sync()
        return sorted(request.params.seed for request in backend.requests)

    once = seeds(1)
    assert once == seeds(1)
    assert len(set(once)) == len(once) == 8
    assert 5 in once
    assert set(once) & set(seeds(2)) == {5}


def test_without_a_seed_the_runtime_draws_it() -> None:
    state, backend = run(lambda s: s.__iadd__(bl.gen()))
    state.sync()
    assert backend.requests[0].params.seed is None
