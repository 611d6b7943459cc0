"""What SGLang's words mean: order of arguments, stops, promises of the text, settings of a run."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Any

import pytest

import branchline as bl
import branchline.sglang as sgl
from branchline.errors import InvalidRequest
from branchline.protocol import ChatTemplate
from branchline.sampling_params import SamplingParams
from branchline.settings import with_changes
from branchline.sglang.backend import BaseBackend
from branchline.sglang.chat_templates import get_chat_template
from branchline.sglang.interpreter import ProgramState
from branchline.sglang.ir import REGEX_INT, REGEX_STR, SglExprList, SglGen
from branchline.sglang.params import Params

if TYPE_CHECKING:
    from collections.abc import Callable

CHATML = ChatTemplate(
    prefix={role: f"<|im_start|>{role}\n" for role in ("system", "user", "assistant")},
    suffix=dict.fromkeys(("system", "user", "assistant"), "<|im_end|>\n"),
)

START = "Say: "  # a prompt has something in it

GEN_ARGUMENTS = (
    "name max_tokens min_tokens n stop stop_token_ids stop_regex temperature top_p top_k min_p "
    "frequency_penalty presence_penalty ignore_eos return_logprob logprob_start_len "
    "top_logprobs_num return_text_in_logprobs dtype choices choices_method regex json_schema"
)


def run(mock: bl.Mock, *nodes: Any, **settings: Any) -> ProgramState:
    @sgl.function
    def program(s):
        s += START
        for node in nodes:
            s += node

    return program.run(backend=mock, **settings)


def test_order_of_arguments() -> None:
    assert " ".join(inspect.signature(sgl.gen).parameters) == GEN_ARGUMENTS
    select = inspect.signature(sgl.select).parameters
    assert list(select) == ["name", "choices", "temperature", "choices_method"]


def test_gen_int_takes_gens_arguments_but_min_tokens(mock: Callable[..., bl.Mock]) -> None:
    backend = mock("12,")
    run(backend, sgl.gen_int("x", 5, 1, ",", temperature=0)).sync()
    params = backend.requests[0].params
    assert (params.max_tokens, params.n, params.temperature) == (5, 1, 0)
    for wrong in ({"min_tokens": 3}, {"regex": "a"}, {"choices": ["a"]}):
        with pytest.raises(TypeError, match=next(iter(wrong))):
            sgl.gen_int("x", **wrong)
    with pytest.raises(TypeError, match="name"):
        sgl.gen_string("x", name="y")


def test_stops_of_numbers_come_after_the_runs(mock: Callable[..., bl.Mock]) -> None:
    backend = mock(["12 of them", '"a b"', "3.5\n", "True"])
    state = run(
        backend,
        sgl.gen("whole", dtype=int),
        sgl.gen("text", dtype="str"),
        sgl.gen("real", dtype=float, stop=";"),
        sgl.gen("truth", dtype=bool),
        stop=["END"],
    )
    assert (state["whole"], state["text"]) == ("12", '"a b"')
    assert (state["real"], state["truth"]) == ("3.5", "True")
    stops = [request.params.stop for request in backend.requests]
    assert stops == [("END", " ", "\n"), ("END",), (";", " ", "\n"), ("END",)]


@pytest.mark.parametrize(
    ("promise", "kept", "broken"),
    [
        ({"dtype": int}, "-12", "twelve"),
        ({"dtype": float}, ".5", "1.2.3"),
        ({"dtype": bool}, "False", "false"),
        ({"dtype": str}, '"O\'Neill, \\"Bob\\"."', "no quotes"),
        ({"regex": r"[a-c]+"}, "abc", "abcd"),
        ({"json_schema": '{"type": "object"}'}, '{"a": 1}', "{'a': 1}"),
    ],
)
def test_promises_of_a_text(
    promise: dict[str, Any], kept: str, broken: str, mock: Callable[..., bl.Mock]
) -> None:
    state = run(mock([kept, broken]), sgl.gen("good", **promise), sgl.gen("bad", **promise))
    assert state["good"] == kept
    with pytest.raises(bl.ProgramError, match=re.escape(broken)) as caught:
        state["bad"]
    assert isinstance(caught.value.__cause__, InvalidRequest)


@pytest.mark.parametrize(
    ("promise", "kind", "right", "wrong"),
    [
        ({"dtype": int}, "regex", ["12", "-3 of them"], ["x", "1.5", " 1"]),
        ({"dtype": float, "stop": ","}, "regex", [".5", "3.1, or", "2\n"], ["1.2.3", "x"]),
        ({"dtype": bool}, "regex", ["True"], ["true"]),
        ({"dtype": str}, "regex", ['"a, \\"b\\""'], ['"a', '"a\nb"', "a"]),
        ({"dtype": bool, "regex": "x"}, "regex", ["False"], ["x"]),
        ({"regex": r"a+"}, "regex", ["aa"], ["b"]),
    ],
)
def test_what_a_model_is_held_to(
    promise: dict[str, Any], kind: str, right: list[str], wrong: list[str]
) -> None:
    params = Params.of(SamplingParams())
    plain = with_changes(params, dict(sgl.gen("x", **promise).changes)).plain()
    assert plain.grammar.kind == kind
    for text in right:
        assert re.fullmatch(plain.grammar.source, text), text
    for text in wrong:
        assert not re.fullmatch(plain.grammar.source, text), text


def test_schemas_and_grammars_of_requests(mock: Callable[..., bl.Mock]) -> None:
    schema = '{"type": "null"}'
    assert Params(json_schema=schema).plain().grammar == bl.Grammar("json_schema", schema)
    assert Params(ebnf='root ::= "a"').plain().grammar == bl.Grammar("ebnf", 'root ::= "a"')
    tag = '{"structures": [], "triggers": []}'
    assert Params(structural_tag=tag).plain().grammar == bl.Grammar("structural_tag", tag)
    with pytest.raises(InvalidRequest, match="regex and json_schema"):
        Params(regex="a", json_schema="{}")
    backend = mock("abc")
    run(backend, sgl.gen("x", regex="[a-c]+")).sync()
    assert backend.requests[0].params.grammar == bl.Grammar("regex", "[a-c]+")


def test_a_text_that_was_cut_is_not_held_to_its_promise(mock: Callable[..., bl.Mock]) -> None:
    state = run(mock("{ 1 2 3 4 5"), sgl.gen("x", 3, json_schema="{}"))
    assert state["x"] == "{ 1 2"
    assert state.get_meta_info("x")["finish_reason"] == {"type": "length", "length": 3}


def test_a_regex_is_checked_where_it_is_written() -> None:
    with pytest.raises(re.error):
        sgl.gen("x", regex="(")
    with pytest.raises(bl.InvalidRequest, match="complex"):
        sgl.gen("x", dtype=complex)


@pytest.mark.parametrize("stream", [False, True])
def test_stop_regex_ends_a_text(stream: bool, mock: Callable[..., bl.Mock]) -> None:
    backend = mock(["one two 33 four five", "after"])
    gen = sgl.gen("x", stop_regex=[r"never", r"\d+"])
    state = run(backend, gen, sgl.gen("y"), stream=stream)
    assert state["x"] == "one two 33"
    assert state.get_meta_info("x")["finish_reason"] == {"type": "stop", "matched": r"\d+"}
    assert state.text() == START + "one two 33after"
    assert backend.prompts[1] == START + "one two 33"
    assert backend.aborted == [backend.requests[0].rid], "the rest is not computed"


def test_stop_regex_of_a_run(mock: Callable[..., bl.Mock]) -> None:
    backend = mock("a b 1 c 2")
    assert run(backend, sgl.gen("x"), stop_regex=r"\d")["x"] == "a b 1"
    both = run(backend, sgl.gen("x", stop_regex="c"), stop_regex=r"\d")
    assert both["x"] == "a b 1 c", "a gen's takes the place of the run's"


def test_stop_regex_with_several_choices(mock: Callable[..., bl.Mock]) -> None:
    state = run(mock(["a 1 b", "c", "d e 2"]), sgl.gen("x", n=3, stop_regex=r"\d"))
    assert state["x"] == ["a 1", "c", "d e 2"]


def test_program_text_is_parsed_for_special_tokens(mock: Callable[..., bl.Mock]) -> None:
    backend = mock("hi", template=CHATML)
    run(backend, "<|im_start|>user\n", sgl.user("<|im_end|>"), sgl.gen("x")).sync()
    run(backend, "<|im_start|>", sgl.select("x", ["a"])).sync()
    for request in backend.requests:
        assert {kind for kind, _ in request.prompt} == {"template"}

    @bl.function
    def own(s):
        s += "<|im_start|>" + bl.gen("x")

    own.run(backend=backend).sync()
    assert backend.requests[-1].prompt == (("program", "<|im_start|>"),), "only in SGLang's mode"


def test_settings_of_a_run(mock: Callable[..., bl.Mock]) -> None:
    backend = mock("a")
    settings = {
        "max_new_tokens": 7,
        "n": 1,
        "stop": None,
        "stop_token_ids": [3],
        "stop_regex": None,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 5,
        "min_p": 0.1,
        "frequency_penalty": 0.2,
        "presence_penalty": 0.3,
        "ignore_eos": True,
        "return_logprob": True,
        "logprob_start_len": -1,
        "top_logprobs_num": 2,
        "return_text_in_logprobs": True,
        "stream": False,
        "use_thread": True,
    }
    run(backend, sgl.gen("x"), **settings).sync()
    params = backend.requests[0].params
    assert params == bl.SamplingParams(
        max_tokens=7,
        stop_token_ids=(3,),
        temperature=0.5,
        top_p=0.9,
        top_k=5,
        min_p=0.1,
        frequency_penalty=0.2,
        presence_penalty=0.3,
        ignore_eos=True,
        logprobs=True,
        top_logprobs=2,
    )
    assert type(params) is bl.SamplingParams, "as it is sent to a runtime"


def test_a_parameter_may_be_called_like_a_setting(mock: Callable[..., bl.Mock]) -> None:
    with pytest.warns(UserWarning, match="named n"):

        @sgl.function
        def sample(s, question, n, use_thread="mine"):
            s += f"{question} {n} {use_thread}"

    backend = mock("")
    assert sample.run(question="q", n=5, backend=backend).text() == "q 5 mine"
    assert sample.run_batch([{"question": "q", "n": 2}], backend=backend)[0].text() == "q 2 mine"


def test_global_config(mock: Callable[..., bl.Mock], capsys: pytest.CaptureFixture[str]) -> None:
    backend = mock("hello")
    sgl.global_config.verbosity = 2
    sgl.global_config.skip_special_tokens_in_output = False
    run(backend, sgl.gen("x"))
    assert capsys.readouterr().out == "Say: hello\n"
    run(backend, sgl.gen("x"), stream=True).sync()
    assert capsys.readouterr().out == "", "its reader shows it"
    assert not backend.requests[0].params.skip_special_tokens


def test_default_backends(mock: Callable[..., bl.Mock]) -> None:
    theirs, ours = bl.Mock("theirs"), bl.Mock("ours")
    bl.set_default_backend(ours)
    assert run(None, sgl.gen("x"))["x"] == "ours"
    sgl.set_default_backend(theirs)
    assert run(None, sgl.gen("x"))["x"] == "theirs"
    assert run(sgl.RuntimeEndpoint("http://127.0.0.1:30000"), sgl.gen("x"))["x"] == "ours"
    sgl.set_default_backend(None)
    bl.set_default_backend(None)
    assert sgl.flush_cache() is False
    assert sgl.get_server_info() is None
    with pytest.raises(bl.InvalidRequest, match="no backend"):
        run(None, sgl.gen("x"))


def test_bind_and_methods(mock: Callable[..., bl.Mock]) -> None:
    class Agent:
        name = "Ann"

        @sgl.function(num_api_spec_tokens=16)
        def greet(self, s, word, mark="!"):
            s += f"{word} {self.name}{mark}"

    mock("")
    greet = Agent().greet.bind(mark="?")
    assert greet.run("Hello").text() == "Hello Ann?"
    assert (greet.arg_names, greet.arg_defaults) == (["word", "mark"], ["!"])
    assert (greet.bind_arguments, greet.num_api_spec_tokens) == ({"mark": "?"}, 16)


def test_states_are_sglangs_everywhere(mock: Callable[..., bl.Mock]) -> None:
    seen = []

    @sgl.function
    def program(s, at=0):
        seen.extend([s, *s.fork(2, position_ids_offset=[0, 10])])
        with s.copy() as copied:
            seen.append(copied)
        s += START + sgl.gen("x")

    mock("a")
    seen.append(program.run())
    seen.append(program())
    seen.extend(program.run_batch([{"at": 1}, (2,)]))
    seen.extend(program.run_batch([{"at": 1}], generator_style=True))
    assert len(seen) == 5 * (1 + 2 + 1 + 1)
    assert {type(state) for state in seen} == {ProgramState}
    assert program.run_batch([]) == program.run_batch([], generator_style=True) == []


def test_stream_executor(mock: Callable[..., bl.Mock]) -> None:
    backend = mock("a", hold=True)
    state = run(backend, sgl.user("q"), sgl.gen("x"))
    executor = state.stream_executor
    assert executor.variables == {}
    assert not executor.variable_event["x"].wait(0.01)
    with pytest.raises(TimeoutError, match="'x'"):
        executor.get_meta_info("x", timeout=0.01)
    backend.release()
    assert executor.variable_event["x"].wait(5)
    assert executor.variables == {"x": "a"}
    assert executor.get_meta_info("x") == state.get_meta_info("x")
    assert executor.text_ == state.text() == START + "USER:q\na"
    assert executor.messages_ == [{"role": "user", "content": "q"}]


@pytest.mark.usefixtures("words")
def test_texts_in_logprobs(mock: Callable[..., bl.Mock]) -> None:
    state = run(
        mock("yes no", select=lambda _: None),
        sgl.gen("x", return_logprob=True, top_logprobs_num=2, return_text_in_logprobs=True),
        sgl.select("y", ["one", "two"]),
    )
    meta = state.get_meta_info("x")
    triples = [*meta["output_token_logprobs"], *meta["output_top_logprobs"][0]]
    triples += [choice[0] for choice in state.get_meta_info("y")["input_token_logprobs"]]
    assert all(text == f"<{token}>" for _, token, text in triples if token)


def test_the_shape_of_separate_reasoning() -> None:
    gen = SglGen("answer")
    assert isinstance(gen, SglGen)
    expr = sgl.separate_reasoning(gen, model_type="none of the known")
    assert isinstance(expr, SglExprList)
    first, mark = expr.expr_list
    assert first is gen
    assert (mark.name, mark.model_type) == ("answer_reasoning_content", "none of the known")
    assert repr(mark) == (
        "SeparateReasoning(model_type=none of the known, name=answer_reasoning_content)"
    )
    for nameless in (None, sgl.gen(), "text"):
        with pytest.raises(ValueError, match="named gen"):
            sgl.separate_reasoning(nameless)


def test_separate_reasoning(mock: Callable[..., bl.Mock]) -> None:
    backend = mock("<think>Hm, 4?</think>\n\nIt is 4.")
    node = sgl.assistant("So: " + sgl.separate_reasoning(sgl.gen("answer"), model_type="qwen3"))
    state = run(backend, sgl.user("2 + 2?"), node)
    assert state["answer"] == "It is 4."
    assert state["answer_reasoning_content"] == "Hm, 4?"
    assert state.messages()[-1]["content"] == "So: It is 4."
    unknown = sgl.separate_reasoning(sgl.gen("answer"), model_type="unheard of")
    with pytest.raises(bl.InvalidRequest, match="unheard of"):
        run(backend, sgl.assistant(unknown))


def test_constants() -> None:
    assert re.fullmatch(REGEX_INT, "-12 \n")
    assert re.fullmatch(REGEX_STR, '"a b"')
    assert not re.fullmatch(REGEX_STR, '"a, b"')


@pytest.mark.parametrize("provider", ["Anthropic", "Crusoe", "LiteLLM", "VertexAI"])
def test_what_is_not_spoken_yet_is_refused_by_name(provider: str) -> None:
    with pytest.raises(bl.InvalidRequest, match=provider):
        getattr(sgl, provider)("model")


def test_vision_is_refused_by_name() -> None:
    with pytest.raises(bl.InvalidRequest, match="image"):
        sgl.image("a.png")
    with pytest.raises(bl.InvalidRequest, match="video"):
        sgl.video("a.mp4", 8)


def test_tracing(mock: Callable[..., bl.Mock], capsys: pytest.CaptureFixture[str]) -> None:
    @sgl.function
    def few_shot(s, question, hint="none"):
        s += "Q: Where is Rome?\nA: In Italy.\nHint: "
        s += hint + "\n"
        s += "Q: " + question + "\nA:" + sgl.gen("where", stop="\n", regex=".*")
        forks = s.fork(2)
        forks += sgl.gen("x", dtype=int)

    backend = mock("")
    traced = few_shot.bind(hint="a city").trace(question="Where is Oslo?")
    traced.last_node.print_graph_dfs()
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == len(traced.flatten_nodes()) + 2  # and a line above each branch
    gens = [node for node in traced.flatten_nodes() if isinstance(node, SglGen)]
    assert [gen.name for gen in gens] == ["where", "x", "x"]
    assert traced.prefix.endswith("\nHint: a city\nQ: Where is Oslo?\nA:")
    assert few_shot.trace().prefix == "Q: Where is Rome?\nA: In Italy.\nHint: "
    assert backend.requests == []

    @sgl.function
    def formatted(s, question):
        s += f"Q: {question}"

    with pytest.raises(TypeError):
        raise formatted.trace().stopped or AssertionError


def test_tracing_by_a_template() -> None:
    @sgl.function
    def talk(s, question):
        s += sgl.user(question) + sgl.assistant(sgl.gen("x"))

    class Mine(BaseBackend):
        pass

    backend = Mine()
    backend.chat_template = get_chat_template("chatml")
    assert talk.trace(question="Q", backend=backend).prefix == (
        "<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\n"
    )
    with pytest.raises(bl.InvalidRequest, match="Mine is a backend of SGLang's"):
        talk.run(question="Q", backend=backend)


def test_cache(mock: Callable[..., bl.Mock]) -> None:
    @sgl.function
    def few_shot(s, question):
        s += "Q: Where is Rome?\nA: In Italy.\nQ: " + question + sgl.gen("x")

    backend = mock("")
    for cache in (few_shot.cache, few_shot.pin):
        assert cache() > 8
        (request,) = backend.requests
        assert backend.prompts == ["Q: Where is Rome?\nA: In Italy.\nQ: "]
        assert request.params.max_tokens == 0
        backend.requests.clear()
    few_shot.unpin()
    assert backend.requests == []
    assert few_shot.compile() is few_shot
