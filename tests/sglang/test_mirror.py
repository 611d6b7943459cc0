"""`import sglang` where SGLang is not installed: what resolves, and to what."""

from __future__ import annotations

import importlib
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING

import pytest

import branchline as bl
import branchline.sglang
from branchline.runtime.cli import main
from branchline.sglang import mirror

if TYPE_CHECKING:
    from pathlib import Path

EXPORTS = (
    "Engine Runtime assistant assistant_begin assistant_end flush_cache function gen gen_int "
    "gen_string get_server_info image select separate_reasoning set_default_backend system "
    "system_begin system_end user user_begin user_end video RuntimeEndpoint "
    "greedy_token_selection token_length_normalized unconditional_likelihood_normalized "
    "ServerArgs Anthropic Crusoe LiteLLM OpenAI VertexAI global_config __version__ "
    "get_server_args"
)

# What programs import from SGLang's modules.
IMPORTS = {
    "sglang.api": "set_default_backend gen function",
    "sglang.lang.api": "set_default_backend gen function separate_reasoning",
    "sglang.lang.ir": (
        "REGEX_INT REGEX_FLOAT REGEX_BOOL REGEX_STR REGEX_STRING SglGen SglExprList "
        "SglSeparateReasoning SglSamplingParams"
    ),
    "sglang.lang.choices": (
        "greedy_token_selection token_length_normalized unconditional_likelihood_normalized "
        "ChoicesSamplingMethod ChoicesDecision"
    ),
    "sglang.lang.backend.runtime_endpoint": "RuntimeEndpoint Runtime",
    "sglang.lang.backend.base_backend": "BaseBackend",
    "sglang.lang.backend.openai": "OpenAI",
    "sglang.lang.chat_template": (
        "get_chat_template get_chat_template_by_model_path register_chat_template "
        "register_chat_template_matching_function ChatTemplate ChatTemplateStyle"
    ),
    "sglang.lang.interpreter": "StreamExecutor ProgramState",
    "sglang.global_config": "global_config",
    "sglang.lang.global_config": "global_config",
    "sglang.utils": (
        "read_jsonl dump_state_text download_and_cache_file print_highlight launch_server_cmd "
        "wait_for_server terminate_process encode_image_base64 http_request LazyImport"
    ),
    "sglang.test.test_utils": "add_common_sglang_args_and_parse select_sglang_backend",
    "sglang.test.test_programs": "test_few_shot_qa test_stream test_gen_min_new_tokens",
    "sglang.srt.utils": "load_image",
    "sglang.srt.utils.hf_transformers_utils": "get_tokenizer",
    "sglang.srt.hf_transformers_utils": "get_tokenizer",
    "sglang.srt.constrained.outlines_backend": "build_regex_from_object",
    "sglang.srt.parser.reasoning_parser": "ReasoningParser",
}


def test_every_name_is_exported() -> None:
    assert set(branchline.sglang.__all__) == set(EXPORTS.split())
    for name in EXPORTS.split():
        assert hasattr(branchline.sglang, name), name


@pytest.mark.usefixtures("mirrored")
@pytest.mark.parametrize("module", IMPORTS)
def test_every_import_resolves(module: str) -> None:
    found = importlib.import_module(module)
    for name in IMPORTS[module].split():
        assert hasattr(found, name), name


@pytest.mark.usefixtures("mirrored")
def test_a_module_is_one_under_all_its_names() -> None:
    sglang = importlib.import_module("sglang")
    assert sglang is branchline.sglang
    old = importlib.import_module("sglang.global_config")
    new = importlib.import_module("sglang.lang.global_config")
    assert old.global_config is new.global_config is sglang.global_config
    endpoint = importlib.import_module("sglang.lang.backend.runtime_endpoint")
    assert endpoint.RuntimeEndpoint is sglang.RuntimeEndpoint


@pytest.mark.usefixtures("mirrored")
def test_modules_are_attributes() -> None:
    scope: dict[str, object] = {}
    exec(
        "import sglang\nimport sglang.lang.ir as ir\n"
        "import sglang.srt.utils.hf_transformers_utils as tokenizers\nimport sglang.global_config",
        scope,
    )
    sglang = importlib.import_module("sglang")
    assert scope["ir"] is sglang.lang.ir
    assert sglang.lang.backend.runtime_endpoint.RuntimeEndpoint is sglang.RuntimeEndpoint
    assert scope["tokenizers"] is sglang.srt.utils.hf_transformers_utils
    assert sglang.global_config.verbosity == 0, "still the settings, not the module"


@pytest.mark.usefixtures("mirrored")
@pytest.mark.parametrize("module", ["sglang.srt.server", "sglang.launch_server", "sglang.lang.no"])
def test_what_is_not_there_is_not_found(module: str) -> None:
    with pytest.raises(ModuleNotFoundError, match=module):
        importlib.import_module(module)


def test_the_names_go_away_again() -> None:
    assert mirror.install()
    mirror.uninstall()
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("sglang")


def test_an_installed_sglang_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "sglang").mkdir()  # such as a clone of its repository
    assert not mirror.is_installed(), "a folder without modules is none"
    (tmp_path / "sglang" / "__init__.py").write_text("mine = True\n")
    importlib.invalidate_caches()
    assert not mirror.install()
    assert importlib.import_module("sglang").mine
    mirror.uninstall()


def test_the_language_has_no_trace_of_it() -> None:
    code = "import branchline, sys; print([m for m in sys.modules if 'sglang' in m])"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, check=True)
    assert done.stdout.strip() == b"[]"


PROGRAM = """
    import argparse
    import sglang as sgl
    from sglang.lang.ir import REGEX_INT
    from sglang.test.test_utils import add_common_sglang_args_and_parse, select_sglang_backend
    from sglang.utils import dump_state_text, read_jsonl

    @sgl.function
    def ask(s, question):
        s += sgl.system("You count.")
        s += sgl.user(question)
        s += sgl.assistant(sgl.gen("answer", 8, stop="."))
        s += sgl.select("mood", ["good", "bad"])

    def main(args):
        questions = list(read_jsonl(args.data))
        backend = select_sglang_backend(args)
        sgl.set_default_backend(backend)
        states = ask.run_batch(questions, num_threads=args.parallel, temperature=0)
        dump_state_text(args.result_file, states)
        print(backend.model_info["model_path"], len(states))
        print(sgl.get_server_info()["requests_finished"] > 0, sgl.flush_cache())

    if __name__ == "__main__":
        parser = argparse.ArgumentParser()
        parser.add_argument("--data")
        main(add_common_sglang_args_and_parse(parser))
"""


def test_a_benchmark_runs_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", list(sys.path))
    backend = bl.Mock("42. That is all", name="the model")
    monkeypatch.setattr("branchline.runtime.cli.connection.attach", lambda _: Closing(backend))
    program, data, result = (tmp_path / name for name in ("bench.py", "data.jsonl", "out.txt"))
    program.write_text(textwrap.dedent(PROGRAM))
    data.write_text('# a comment\n{"question": "6 * 7?"}\n{"question": "40 + 2?"}\n')
    flags = ["--data", str(data), "--result-file", str(result), "--parallel", "2"]
    try:
        status = main(["run", "--address", "ipc://mine", str(program), *flags])
    finally:
        mirror.uninstall()
    assert status == 0
    assert capsys.readouterr().out == "the model 2\nTrue None\n"
    assert len(backend.requests) == 4
    written = result.read_text()
    assert written.count("ASSISTANT:42\ngood") == 2
    assert "6 * 7?" in written.split("= 1 =", maxsplit=1)[0]


class Closing:
    """A connection in a `with` block."""

    def __init__(self, backend: bl.Mock) -> None:
        self._backend = backend

    def __enter__(self) -> bl.Mock:
        return self._backend

    def __exit__(self, *_: object) -> None:
        pass
