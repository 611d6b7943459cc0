"""Faults that SGLang's frontend has, one test for each, on programs that are written for it.

One is of what is not here: fault 22, of the Anthropic backend.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest

import branchline as bl
import branchline.sglang as sgl
from branchline.choices import token_length_normalized

if TYPE_CHECKING:
    from collections.abc import Callable

    Make = Callable[..., bl.Mock]


class Down(Exception):
    """What a backend says."""


@sgl.function
def ask(s, question="Why?"):
    s += sgl.user(question)
    s += sgl.assistant(sgl.gen("answer"))


def test_1_nothing_hangs_after_an_error(mock: Make) -> None:
    @sgl.function
    def go_on(s):
        s += "a" + sgl.gen("first")
        time.sleep(0.05)  # the request has failed when more is appended
        s += sgl.gen("later")

    mock(Down("out of memory"))
    state = go_on.run()
    for read in (state.text, state.sync, lambda: state["later"], state.messages):
        with pytest.raises(bl.ProgramError, match="out of memory"):
            read()
    assert isinstance(state.error(), bl.ProgramError)


def test_2_the_cause_is_raised_where_a_variable_is_read(mock: Make) -> None:
    mock(Down("out of memory"))
    with pytest.raises(bl.ProgramError, match=r"test_faults\.py:\d+.*'answer'.*memory") as caught:
        ask.run()["answer"]
    assert isinstance(caught.value.__cause__, Down)


def test_3_the_end_of_a_stream_is_never_missed(mock: Make) -> None:
    mock("one two three")
    for _ in range(100):
        state = ask.run(stream=True)
        assert "".join(state.text_iter()).endswith("one two three\n")


def test_4_waiting_for_a_variable_costs_nothing(mock: Make) -> None:
    backend = mock("one two", hold=True)
    state = ask.run(stream=True)
    spent: list[float] = []

    def read() -> None:
        began = time.thread_time()
        spent.append(len(list(state.text_iter("answer"))))
        spent.append(time.thread_time() - began)

    reader = threading.Thread(target=read)
    reader.start()
    time.sleep(0.3)
    backend.release()
    reader.join(5)
    pieces, seconds = spent
    assert pieces == 2
    assert seconds < 0.1, "it waited three times as long"


def test_5_gens_without_a_name_are_no_variables(mock: Make) -> None:
    @sgl.function
    def program(s):
        s += "a" + sgl.gen() + sgl.gen()
        forks = s.fork(2)
        forks += sgl.gen()
        forks.join()

    mock("x")
    state = program.run()
    assert state.stream_executor.variables == {}
    assert state.text() == "axx"


def test_6_a_join_is_aligned_with_the_branches(mock: Make) -> None:
    @sgl.function
    def program(s):
        s += "a"
        forks = s.fork(3)
        assert len(forks) == 3
        for at in (0, 2):
            forks[at] += f" {at}:" + sgl.gen("x")
        forks.join()

    mock(lambda prompt: prompt[-2])
    assert program.run()["x"] == ["0", None, "2"]


def test_7_a_text_can_be_appended_to_all_branches(mock: Make) -> None:
    @sgl.function
    def program(s):
        forks = s.fork(2)
        forks += "and "
        forks += [sgl.gen("x"), sgl.gen("x", 1)]
        forks.join()

    mock("so on")
    assert program.run()["x"] == ["so on", "so"]


def test_8_branches_know_what_is_known_about_a_variable(mock: Make) -> None:
    @sgl.function
    def program(s):
        s += "a" + sgl.gen("x")
        return [fork.get_meta_info("x") for fork in s.fork(2)]

    mock("one two")
    state = program.run()
    assert state.ret_value == [state.get_meta_info("x")] * 2
    assert state.ret_value[0]["completion_tokens"] == 3  # two words and the end


def test_9_bind_keeps_speculation() -> None:
    program = sgl.function(ask.func, num_api_spec_tokens=64).bind(question="Who?")
    assert program.num_api_spec_tokens == 64
    assert sgl.function(api_num_spec_tokens=8)(ask.func).num_api_spec_tokens == 8


def test_10_a_parameter_called_like_a_setting_is_the_programs(mock: Make) -> None:
    with pytest.warns(UserWarning, match="named n"):

        @sgl.function
        def sample(s, question, n):
            s += question
            forks = s.fork(n)
            forks += sgl.gen("x")
            forks.join()

    backend = mock("yes")
    assert sample.run(question="Really?", n=3)["x"] == ["yes"] * 3
    assert [request.params.n for request in backend.requests] == [1] * 3


def test_11_a_batch_runs_each_body_once_and_changes_no_input(mock: Make) -> None:
    ran = []

    @sgl.function
    def program(s, question, style):
        ran.append(question)
        s += 1 / question and style + sgl.gen("x")

    backend = mock("y")
    items = [{"question": at} for at in (1, 2, 3)]
    states = program.bind(style="short").run_batch(items)
    assert [state["x"] for state in states] == ["y"] * 3
    assert sorted(ran) == [1, 2, 3]
    assert len(backend.requests) == 3
    assert items == [{"question": 1}, {"question": 2}, {"question": 3}]


def test_12_an_exception_closes_roles_and_scopes(mock: Make) -> None:
    @sgl.function
    def program(s, question):
        try:
            with s.user(), s.var_scope("said"):
                s += "Hel"
                s += "lo" if 1 / question else ""
        except ZeroDivisionError:
            s += sgl.assistant(sgl.gen("x"))

    mock("Hm?")
    state = program.run(0)
    assert state["said"] == "Hel"
    assert [message["role"] for message in state.messages()] == ["user", "assistant"]


def test_13_a_certain_token_counts_and_an_empty_choice_is_refused(mock: Make) -> None:
    # The mean of the first is -0.3; without its certain token it would be -0.6, the worse one.
    mock("", likelihoods={"a b": [0.0, -0.6], "c d": [-0.5, -0.5]})

    @sgl.function
    def program(s, choices):
        s += "Which? " + sgl.select("x", choices, choices_method=token_length_normalized)

    assert program.run(["a b", "c d"])["x"] == "a b"
    with pytest.raises(bl.ProgramError, match="has no tokens"):
        program.run(["", "c d"])["x"]


def test_14_a_quoted_text_may_have_punctuation(mock: Make) -> None:
    @sgl.function
    def typed(s):
        s += "Name: " + sgl.gen_string("name")

    mock('"O\'Neill, Bob."')
    assert typed.run()["name"] == '"O\'Neill, Bob."'


def test_15_several_choices_make_a_list(mock: Make) -> None:
    mock(["red", "green", "blue", "next"])

    @sgl.function
    def program(s):
        s += "A colour: " + sgl.gen("colours", n=3) + ". " + sgl.gen("after")

    state = program.run()
    assert state["colours"] == ["red", "green", "blue"]
    assert state.text() == "A colour: red. next"
    assert len(state.get_meta_info("colours")) == 3


@pytest.mark.parametrize("parallel", [True, False])
def test_16_branches_can_be_appended(parallel: bool, mock: Make) -> None:
    sgl.global_config.enable_parallel_encoding = parallel

    @sgl.function
    def program(s):
        s += "a"
        forks = s.fork(2, position_ids_offset=[0, 100])
        forks += lambda at: f"[{at}" + sgl.gen(f"x{at}") + "]"
        forks.join("concate_and_append")
        s += sgl.gen("y")

    mock("!")
    assert program.run().text() == "a[0!][1!]!"


def test_17_one_expression_serves_all_branches(mock: Make) -> None:
    @sgl.function
    def program(s):
        s += "a"
        node = sgl.gen("x")
        forks = s.fork(3)
        forks += lambda at: f" {at}:"
        forks += node
        forks.join()

    mock(lambda prompt: f"I am {prompt[-2]}")
    assert program.run()["x"] == ["I am 0", "I am 1", "I am 2"]


def test_18_what_a_model_wrote_is_sent_as_ids(mock: Make) -> None:
    @sgl.function
    def program(s):
        s += "Count: " + sgl.gen("x", 3) + "," + sgl.gen("y", 2)

    backend = mock("one two three four")
    program.run().sync()
    assert [kind for kind, _ in backend.requests[1].prompt] == ["template", "tokens", "template"]


def test_19_a_generator_gives_each_state_as_soon_as_it_is_there(mock: Make) -> None:
    backend = mock(lambda prompt: bl.Reply("y", delay=5.0 if "late" in prompt else 0.0))
    items = [{"question": f"{at}"} for at in range(250)] + [{"question": "late"}]
    states = ask.run_batch(items, generator_style=True, num_threads=8)
    began = time.monotonic()
    assert [next(states)["answer"] for _ in range(250)] == ["y"] * 250
    assert time.monotonic() - began < 4, "none of them waits for the last one"
    states.close()
    assert backend.most_alive <= 8


def test_20_a_fork_waits_for_nothing(mock: Make) -> None:
    @sgl.function
    def program(s, size):
        s += "a" + sgl.gen("x")
        forks = s.fork(size)
        forks += sgl.gen("y")
        return forks

    backend = mock("z", hold=True)
    states = [program.run(size) for size in (1, 4)]
    assert not any("x" in state for state in states), "the body has ended before"
    backend.release()
    assert [fork["y"] for state in states for fork in state.ret_value] == ["z"] * 5
    assert len(backend.requests) == 7, "nothing is asked to warm the cache"


@pytest.mark.parametrize("stream", [True, False])
def test_21_what_stands_before_reasoning_stays(stream: bool, mock: Make) -> None:
    @sgl.function
    def program(s):
        s += sgl.user("2 + 2?")
        answer = sgl.separate_reasoning(sgl.gen("answer"), model_type="deepseek-r1")
        s += sgl.assistant("Well: " + answer)
        s += sgl.user("Sure?") + sgl.assistant(sgl.gen("sure"))

    backend = mock(["I add.</think>\n\n4", "Yes"])
    state = program.run(stream=stream)
    assert state["answer"] == "4"
    assert state["answer_reasoning_content"] == "I add."
    state.sync()
    assert "Well: 4" in backend.prompts[1]
    assert "I add" not in backend.prompts[1]


def test_23_tracing_one_program_leaves_others_alone(mock: Make) -> None:
    """While its body is at work, another thread runs a program: it runs, and is not traced."""
    inside, finished = threading.Event(), threading.Event()

    @sgl.function
    def slow(s, question):
        inside.set()
        assert finished.wait(5)
        s += "Q: " + question

    mock("now")
    traces = []
    tracer = threading.Thread(target=lambda: traces.append(slow.trace()))
    tracer.start()
    assert inside.wait(5)
    assert ask.run()["answer"] == "now"
    finished.set()
    tracer.join(5)
    assert traces[0].prefix == "Q: "


def test_the_fault_without_a_test_is_of_what_is_not_here() -> None:
    with pytest.raises(bl.InvalidRequest, match="not spoken"):
        sgl.Anthropic("claude")
    numbers = [name.split("_")[1] for name in globals() if name.startswith("test_")]
    tested = {int(number) for number in numbers if number.isdecimal()}
    assert tested == set(range(1, 24)) - {22}
